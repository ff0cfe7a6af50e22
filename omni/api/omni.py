"""The synchronous interface."""

import threading
import weakref
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
    over. Several threads may read it: each output goes to one of them, an error too, and all end when it is over or closed.
    """

    def __init__(self, session: Session, batch: Batch, mailbox: "SimpleQueue[Item | None]") -> None:
        # Keeps the model loaded as long as somebody reads.
        self._session = session
        self._batch = batch
        self._mailbox = mailbox
        self._turn = threading.Lock()
        """Whose turn it is to read: outputs are made in the order in which their items came."""
        self._closed = False
        # Not a `__del__`, which would also be called for what was interrupted while it was made.
        weakref.finalize(self, batch.abandon).atexit = False

    def submit(self) -> None:
        """Starts the requests. If it is interrupted, they are given up."""
        try:
            self._batch.submit()
        except BaseException:
            self._give_up()
            raise

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Output:
        self._batch.check_home()
        try:
            with self._turn:
                output = self._next()
        except BaseException:
            self._give_up()
            raise
        if output is None:
            raise StopIteration
        return output

    def _next(self) -> Output | None:
        while not self._closed and not self._batch.done:
            item = self._mailbox.get()
            if item is None or self._closed:
                continue
            try:
                output = self._batch.take(item)
            except BaseException:
                # Before the next reader's turn.
                self._closed = True
                raise
            if output is not None:
                return output
        return None

    def close(self) -> None:
        """Gives up what is not over. Idempotent."""
        self._end()
        self._batch.cancel()

    def _give_up(self) -> None:
        """As `close`, without waiting."""
        self._end()
        self._batch.give_up()

    def _end(self) -> None:
        self._closed = True
        # Who waits for an item looks again; the others wait for the turn.
        self._mailbox.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


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

        Raises InputError for wrong settings at once, StageError when closed, ForkError in a forked process. What goes wrong in a
        single request is raised where its outputs are read, also that too many wait (OverloadedError); in a list it stays in that
        request's `Result.error` or last `Output.error`, and the others go on. So it does in one of `n` answers, unless the request
        could not be prepared, which would be the error of all of them.
        """
        mailbox: SimpleQueue[Item | None] = SimpleQueue()
        batch, many = self._batch(
            messages, modalities, voice, sampling, priority, cache_salt, n, keep=not stream, put=mailbox.put, forms=True
        )
        outputs = OutputStream(self, batch, mailbox)
        outputs.submit()
        if stream:
            return outputs
        for _ in outputs:
            pass
        results = batch.results()
        return results if many else results[0]

    def close(self) -> None:
        """Gives up what is under way, frees the model and ends every thread. Idempotent.

        A thread that is in a library's hands, preparing a request, is left to it. Ctrl-C interrupts the waiting, not the closing.
        """
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
