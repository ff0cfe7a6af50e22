"""The asyncio interface."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self, Unpack, overload

from omni.api.session import Session

if TYPE_CHECKING:
    from omni.api.arguments import GenerateArguments, Messages, Requests
    from omni.api.hidden_states import HiddenStates, HiddenStatesArguments
    from omni.api.results import Result
    from omni.api.stream import AsyncOutputStream, GenerateCall


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
        """Does what `Omni.hidden_states` does, without blocking the event loop."""
        from omni.api.hidden_states import check_hidden_states, read_hidden_states

        call = check_hidden_states(self.pipeline, messages, arguments)
        return read_hidden_states(call, await self.complete(messages, **call.arguments))

    def _start(
        self, messages: object, arguments: GenerateArguments, *, keep: bool
    ) -> tuple[AsyncOutputStream, GenerateCall]:
        from omni.api.stream import AsyncItemQueue, AsyncOutputStream, GenerateCall

        queue = AsyncItemQueue()
        call = GenerateCall(self._client, messages, arguments, keep=keep, put=queue.put, may_wait=False)
        outputs = AsyncOutputStream(self, call, queue)
        outputs.submit()
        return outputs, call

    async def close(self) -> None:
        """Aborts all requests, frees the model and ends every thread. Idempotent."""
        if not self._client.owner.forked:
            await asyncio.to_thread(self._client.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        """Closes the model. Does not wait where a coroutine that holds the block is closed."""
        if not self._close_if_collected(kind):
            await self.close()
