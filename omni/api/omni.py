"""The synchronous interface."""

from __future__ import annotations

from queue import SimpleQueue
from typing import TYPE_CHECKING, Literal, Self, Unpack, overload

from omni.api.session import Session

if TYPE_CHECKING:
    from omni.api.arguments import GenerateArguments, Messages, Requests
    from omni.api.hidden_states import HiddenStates, HiddenStatesArguments
    from omni.api.results import Result
    from omni.api.stream import Item, OutputStream


class Omni(Session):
    """A model to generate with, from any number of threads. Close it, or use it in a `with` block."""

    @overload
    def generate(
        self, messages: Messages | Requests, *, stream: Literal[True] = True, **arguments: Unpack[GenerateArguments]
    ) -> OutputStream: ...

    # A string is a sequence of strings too; the first overload that fits applies.
    @overload
    def generate(  # type: ignore[overload-overlap]
        self, messages: Messages, *, stream: Literal[False], **arguments: Unpack[GenerateArguments]
    ) -> Result: ...

    @overload
    def generate(
        self, messages: Requests, *, stream: Literal[False], **arguments: Unpack[GenerateArguments]
    ) -> list[Result]: ...

    def generate(
        self, messages: Messages | Requests, *, stream: bool = True, **arguments: Unpack[GenerateArguments]
    ) -> OutputStream | Result | list[Result]:
        """Answers a chat, or a list of chats at once.

        messages: OpenAI-style messages, or a string. A list that holds only lists and strings is a list of requests.
        stream: True gives outputs as they come; those of a list are mixed and numbered by `Output.index`. False waits and gives a
        `Result`, or a list of them in the order of the requests.
        arguments: `modalities`, `voice`, `sampling`, `priority`, `cache_salt`, `n` and others, see `GenerateArguments`.

        Raises InputError for wrong arguments at once, StageError when closed, ForkError in a forked process. Errors of a single
        request are raised where its outputs are read, OverloadedError too. Errors of a request in a list are in its
        `Result.error` or last `Output.error`, and the other requests continue. So are those of one of `n` answers, unless the
        request could not be prepared, which is an error of all of them.
        """
        from omni.api.stream import GenerateCall, OutputStream

        queue: SimpleQueue[Item | None] = SimpleQueue()
        call = GenerateCall(self._client, messages, arguments, keep=not stream, put=queue.put, may_wait=True)
        outputs = OutputStream(self, call, queue)
        outputs.submit()
        if stream:
            return outputs
        for _ in outputs:
            pass
        return call.results()

    def hidden_states(self, messages: Messages, **arguments: Unpack[HiddenStatesArguments]) -> HiddenStates:
        """Hidden states of one chat: of its prompt, and of the tokens that the stage generates for it.

        arguments: `stage`, `layers`, `device`, `sampling`, `priority` and `cache_salt`, see `HiddenStatesArguments`.

        Raises InputError, and StageError if the request fails. Other requests may run meanwhile, from other threads.
        """
        from omni.api.hidden_states import check_hidden_states, read_hidden_states

        call = check_hidden_states(self.pipeline, messages, arguments)
        return read_hidden_states(call, self.generate(messages, stream=False, **call.arguments))

    def close(self) -> None:
        """Aborts all requests, frees the model and ends every thread, except one that a library keeps busy with a request.
        Idempotent. Ctrl-C interrupts the waiting, not the closing."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        """Closes the model. Does not wait where a generator that holds the block is closed."""
        if not self._close_if_collected(kind):
            self.close()
