"""The synchronous interface."""

import threading
from queue import SimpleQueue
from typing import Literal, Self, Unpack, overload

from omni.api.hidden_states import HiddenStates, HiddenStatesArguments, check_hidden_states, read_hidden_states
from omni.api.request import GenerateArguments, Messages, Requests
from omni.api.results import Output, Result
from omni.api.session import CallOutputs, GenerateCall, Item, Session


class OutputStream(CallOutputs):
    """The outputs of one `generate` call, an iterator. Its requests run from the start, whether it is read or not. Closing it,
    leaving its `with` block, dropping the last reference to it or an exception while it waits (Ctrl-C) cancels unfinished requests.
    Several threads may read it: each output or error goes to one of them, and all end with the last output or when it is closed."""

    def __init__(self, session: Session, call: GenerateCall, queue: "SimpleQueue[Item | None]") -> None:
        super().__init__(session, call, queue.put)
        self._queue = queue
        self._reading = threading.Lock()
        """Held by the thread that reads: outputs are made in the order of their items."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Output:
        self._call.check_owner()
        try:
            with self._reading:
                output = self._next()
        except BaseException:
            self._cancel_soon()
            raise
        if output is None:
            raise StopIteration
        return output

    def _next(self) -> Output | None:
        while not self._closed and not self._call.finished:
            item = self._queue.get()
            if item is None or self._closed:
                continue
            try:
                output = self._call.take(item)
            except BaseException:
                # Before the next reader's turn.
                self._closed = True
                raise
            if output is not None:
                return output
        return None

    def close(self) -> None:
        """Cancels unfinished requests. Idempotent."""
        self._end()
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


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
        arguments: `modalities`, `voice`, `sampling`, `priority`, `cache_salt` and `n`, see `GenerateArguments`.

        Raises InputError for wrong arguments at once, StageError when closed, ForkError in a forked process. Errors of a single
        request are raised where its outputs are read, OverloadedError too. Errors of a request in a list are in its
        `Result.error` or last `Output.error`, and the other requests continue. So are those of one of `n` answers, unless the
        request could not be prepared, which is an error of all of them.
        """
        queue: SimpleQueue[Item | None] = SimpleQueue()
        call = self._call(messages, arguments, keep=not stream, put=queue.put, may_wait=True)
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
        asked = check_hidden_states(self.pipeline, messages, arguments)
        return read_hidden_states(asked, self.generate(messages, stream=False, **asked.arguments))

    def close(self) -> None:
        """Aborts all requests, frees the model and ends every thread, except one that a library keeps busy with a request.
        Idempotent. Ctrl-C interrupts the waiting, not the closing."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
