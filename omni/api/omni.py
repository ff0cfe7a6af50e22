"""The synchronous interface."""

from collections.abc import Sequence
from queue import SimpleQueue
from types import TracebackType
from typing import Literal, Self, overload

from omni.api.ask import Messages, Requests, Sampling
from omni.api.batch import Batch, Item
from omni.api.results import Output, Result
from omni.api.session import Session


class OutputStream:
    """The outputs of one `generate` call, an iterator. Its requests run from the start, read or not.

    Closing it, leaving its `with` block, letting go of it or an exception while it waits (Ctrl-C) gives up what is not
    over.
    """

    def __init__(self, session: Session, batch: Batch, mailbox: "SimpleQueue[Item]") -> None:
        # Keeps the model loaded as long as somebody reads.
        self._session = session
        self._batch = batch
        self._mailbox = mailbox
        self._closed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Output:
        try:
            while not self._closed and not self._batch.done:
                output = self._batch.take(self._mailbox.get())
                if output is not None:
                    return output
        except BaseException:
            self.close()
            raise
        raise StopIteration

    def close(self) -> None:
        """Gives up what is not over. Idempotent."""
        self._closed = True
        self._batch.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        self._batch.abandon()


class Omni(Session):
    """A model to generate with, from any number of threads. Close it, or use it in a `with` block."""

    @overload
    def generate(
        self,
        messages: Messages | Requests,
        *,
        modalities: Sequence[str] | None = None,
        voice: str | None = None,
        sampling: Sampling = None,
        priority: int = 0,
        cache_salt: str = "",
        n: int = 1,
        stream: Literal[True] = True,
    ) -> OutputStream: ...

    # A string is a sequence of strings too; what fits first is meant.
    @overload
    def generate(  # type: ignore[overload-overlap]
        self,
        messages: Messages,
        *,
        modalities: Sequence[str] | None = None,
        voice: str | None = None,
        sampling: Sampling = None,
        priority: int = 0,
        cache_salt: str = "",
        n: int = 1,
        stream: Literal[False],
    ) -> Result: ...

    @overload
    def generate(
        self,
        messages: Requests,
        *,
        modalities: Sequence[str] | None = None,
        voice: str | None = None,
        sampling: Sampling = None,
        priority: int = 0,
        cache_salt: str = "",
        n: int = 1,
        stream: Literal[False],
    ) -> list[Result]: ...

    def generate(
        self,
        messages: Messages | Requests,
        *,
        modalities: Sequence[str] | None = None,
        voice: str | None = None,
        sampling: Sampling = None,
        priority: int = 0,
        cache_salt: str = "",
        n: int = 1,
        stream: bool = True,
    ) -> OutputStream | Result | list[Result]:
        """Answers a chat, or a list of chats at once.

        messages: OpenAI-style messages, or a string. A list that holds only lists and strings is a list of requests.
        modalities: what to give, of `self.modalities`; None gives all of it.
        voice: of `self.voices`, for audio; None takes the first.
        sampling: by stage, or alone for the stage that writes the text (where none does, the first that samples).
        priority: the lower is served first; among equals, who came first.
        cache_salt: only requests of the same salt share what is cached of prompts and media; keep tenants apart by it.
        n: answers to each request, 1 to 64, told apart by `Output.sample`; a `Result` has the others in `alternatives`. They
        differ where sampling draws: at temperature 0 they are all alike.
        stream: True gives outputs as they come, those of a list mixed and told apart by `Output.index`. False waits
        and gives a `Result`, or a list of them in the order of the requests.

        Raises InputError for wrong settings at once. What goes wrong in a single request is raised where its outputs
        are read; in a list it stays in that request's `Result.error` or last `Output.error`, and the others go on. So it does
        in one of `n` answers, unless the request could not be prepared, which would be the error of all of them.
        """
        mailbox: SimpleQueue[Item] = SimpleQueue()
        batch, many = self._submit(
            messages, modalities, voice, sampling, priority, cache_salt, n, keep=not stream, put=mailbox.put, forms=True
        )
        outputs = OutputStream(self, batch, mailbox)
        if stream:
            return outputs
        for _ in outputs:
            pass
        results = batch.results()
        return results if many else results[0]

    def close(self) -> None:
        """Gives up what is under way, frees the model and ends every thread. Idempotent."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
