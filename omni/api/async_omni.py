"""The asyncio interface."""

import asyncio
from collections import deque
from typing import Self, Unpack, overload

from omni.api.hidden_states import HiddenStates, HiddenStatesArguments, check_hidden_states, read_hidden_states
from omni.api.request import GenerateArguments, Messages, Requests
from omni.api.results import Output, Result
from omni.api.session import CallOutputs, GenerateCall, Item, Session


class _OutputQueue:
    """From any thread into one event loop. A burst of items wakes the loop once. None: the reader checks for the end."""

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
                # The loop is closed, so no reader is left.
                self._items.clear()

    async def get(self) -> Item | None:
        """Returns the next item. One reader at a time."""
        if self._items:
            # Otherwise a reader that is behind would never yield to the loop, nor see its cancellation.
            await asyncio.sleep(0)
        while not self._items:
            await self._filled.wait()
            self._filled.clear()
        return self._items.popleft()

    def _wake(self) -> None:
        # Before the reader checks: an item that comes after its check wakes the loop again.
        self._waking = False
        self._filled.set()


class AsyncOutputStream(CallOutputs):
    """The outputs of one `generate` call, an asynchronous iterator. Its requests run from the start, whether it is read or not.
    `aclose`, leaving its `async with` block, dropping the last reference to it (`break`) or cancelling the task that reads it
    cancels unfinished requests. Several tasks may read it: each output or error goes to one of them, and all end with the last
    output, when it is closed, or when one of them is cancelled."""

    def __init__(self, session: Session, call: GenerateCall, queue: _OutputQueue) -> None:
        super().__init__(session, call, queue.put)
        self._queue = queue
        self._reading = asyncio.Lock()
        """Held by the task that reads: outputs are made in the order of their items."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Output:
        self._call.check_owner()
        try:
            async with self._reading:
                output = await self._next()
        except BaseException:
            self._cancel_soon()
            raise
        if output is None:
            raise StopAsyncIteration
        return output

    async def _next(self) -> Output | None:
        while not self._closed and not self._call.finished:
            item = await self._queue.get()
            if item is not None and not self._closed:
                output = self._call.take(item)
                if output is not None:
                    return output
        return None

    async def aclose(self) -> None:
        """Cancels unfinished requests. Idempotent."""
        self._cancel_soon()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._cancel_soon()


class AsyncOmni(Session):
    """A model to generate with from coroutines. Close it, or use it in an `async with` block. Loading blocks: inside a running
    event loop, make one with `await asyncio.to_thread(AsyncOmni, model)`."""

    def generate(self, messages: Messages | Requests, **arguments: Unpack[GenerateArguments]) -> AsyncOutputStream:
        """Outputs as they come: `async for out in omni.generate(...)`. Arguments and errors as in `Omni.generate`. Never blocks:
        errors of sampling that the stages find, and of grammars, are raised where the outputs are read."""
        return self._start(messages, arguments, keep=False)[0]

    # A string is a sequence of strings too; the first overload that fits applies.
    @overload
    async def complete(  # type: ignore[overload-overlap]
        self, messages: Messages, **arguments: Unpack[GenerateArguments]
    ) -> Result: ...

    @overload
    async def complete(self, messages: Requests, **arguments: Unpack[GenerateArguments]) -> list[Result]: ...

    async def complete(
        self, messages: Messages | Requests, **arguments: Unpack[GenerateArguments]
    ) -> Result | list[Result]:
        """The whole answer: a `Result`, or for a list of requests a list of them in order."""
        outputs, call = self._start(messages, arguments, keep=True)
        async for _ in outputs:
            pass
        return call.results()

    async def hidden_states(self, messages: Messages, **arguments: Unpack[HiddenStatesArguments]) -> HiddenStates:
        """As `Omni.hidden_states`."""
        asked = check_hidden_states(self.pipeline, messages, arguments)
        return read_hidden_states(asked, await self.complete(messages, **asked.arguments))

    def _start(
        self, messages: object, arguments: GenerateArguments, *, keep: bool
    ) -> tuple[AsyncOutputStream, GenerateCall]:
        queue = _OutputQueue()
        call = self._call(messages, arguments, keep=keep, put=queue.put, may_wait=False)
        outputs = AsyncOutputStream(self, call, queue)
        outputs.submit()
        return outputs, call

    async def close(self) -> None:
        """Aborts all requests, frees the model and ends every thread. Idempotent."""
        if not self._client.owner.forked:
            await asyncio.to_thread(self._client.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()
