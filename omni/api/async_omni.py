"""The asyncio interface."""

import asyncio
import weakref
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Self, overload

from omni.api.ask import Messages, Requests, Sampling
from omni.api.batch import Batch, Item
from omni.api.results import Output, Result
from omni.api.session import Session


class _Mailbox:
    """From any thread into one event loop. A burst of items wakes the loop once. None: look whether it is over."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: deque[Item | None] = deque()
        self._filled = asyncio.Event()
        self._waking = False

    def put(self, item: Item | None) -> None:
        self._items.append(item)
        if not self._waking:
            self._waking = True
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:
                # The loop is closed, and with it went everybody who could have read this.
                self._items.clear()

    async def get(self) -> Item | None:
        """For one reader at a time."""
        if self._items:
            # A reader that is behind would otherwise never let go of the loop, nor see that it was cancelled.
            await asyncio.sleep(0)
        while not self._items:
            await self._filled.wait()
            self._filled.clear()
        return self._items.popleft()

    def _wake(self) -> None:
        # Before the reader looks: an item that comes after its look wakes the loop again.
        self._waking = False
        self._filled.set()


class AsyncOutputStream:
    """The outputs of one `generate` call, an asynchronous iterator. Its requests run from the start, read or not.

    `aclose`, leaving its `async with` block, letting go of it (`break`) or cancelling the task that reads it gives up
    what is not over. Several tasks may read it: each output goes to one of them, an error too, and all end when it is over, closed,
    or one of them cancelled.
    """

    def __init__(self, session: Session, batch: Batch, mailbox: _Mailbox) -> None:
        # Keeps the model loaded as long as somebody reads.
        self._session = session
        self._batch = batch
        self._mailbox = mailbox
        self._turn = asyncio.Lock()
        """Whose turn it is to read: outputs are made in the order in which their items came."""
        self._closed = False
        # Not a `__del__`, which would also be called for what was interrupted while it was made.
        weakref.finalize(self, batch.abandon).atexit = False

    def submit(self) -> None:
        """Starts the requests. If it is interrupted, they are given up."""
        try:
            self._batch.submit()
        except BaseException:
            self._close()
            raise

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Output:
        self._batch.check_home()
        try:
            async with self._turn:
                output = await self._next()
        except BaseException:
            self._close()
            raise
        if output is None:
            raise StopAsyncIteration
        return output

    async def _next(self) -> Output | None:
        while not self._closed and not self._batch.done:
            item = await self._mailbox.get()
            if item is not None and not self._closed:
                output = self._batch.take(item)
                if output is not None:
                    return output
        return None

    async def aclose(self) -> None:
        """Gives up what is not over. Idempotent."""
        self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        self._closed = True
        self._mailbox.put(None)
        self._batch.give_up()


class AsyncOmni(Session):
    """A model to generate with from coroutines. Close it, or use it in an `async with` block.

    Loading blocks: inside a running event loop, make one with `await asyncio.to_thread(AsyncOmni, model)`.
    """

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
    ) -> AsyncOutputStream:
        """Outputs as they come: `async for out in omni.generate(...)`. Arguments and errors as in `Omni.generate`."""
        mailbox = _Mailbox()
        batch, _ = self._batch(
            messages, modalities, voice, sampling, priority, cache_salt, n, keep=False, put=mailbox.put
        )
        outputs = AsyncOutputStream(self, batch, mailbox)
        outputs.submit()
        return outputs

    # A string is a sequence of strings too; what fits first is meant.
    @overload
    async def complete(  # type: ignore[overload-overlap]
        self,
        messages: Messages,
        *,
        modalities: Sequence[str] | None = None,
        voice: str | None = None,
        sampling: Sampling = None,
        priority: int = 0,
        cache_salt: str = "",
        n: int = 1,
    ) -> Result: ...

    @overload
    async def complete(
        self,
        messages: Requests,
        *,
        modalities: Sequence[str] | None = None,
        voice: str | None = None,
        sampling: Sampling = None,
        priority: int = 0,
        cache_salt: str = "",
        n: int = 1,
    ) -> list[Result]: ...

    async def complete(
        self,
        messages: Messages | Requests,
        *,
        modalities: Sequence[str] | None = None,
        voice: str | None = None,
        sampling: Sampling = None,
        priority: int = 0,
        cache_salt: str = "",
        n: int = 1,
    ) -> Result | list[Result]:
        """The whole answer: a `Result`, or for a list of requests a list of them in order."""
        mailbox = _Mailbox()
        batch, many = self._batch(
            messages, modalities, voice, sampling, priority, cache_salt, n, keep=True, put=mailbox.put
        )
        outputs = AsyncOutputStream(self, batch, mailbox)
        outputs.submit()
        async for _ in outputs:
            pass
        results = batch.results()
        return results if many else results[0]

    async def close(self) -> None:
        """Gives up what is under way, frees the model and ends every thread. Idempotent."""
        if not self._client.owner.forked:
            await asyncio.to_thread(self._client.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()
