"""The events of a client that wait for an earlier one, such as an item whose picture is being read."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from omni.errors import InputError, counted
from omni.serve.realtime.client_events import (
    AnyClientEvent,
    AppendAudio,
    CancelResponse,
    ClearAudio,
    CommitAudio,
    CreateItem,
    CreateResponse,
    DeleteItem,
    RetrieveItem,
    SessionUpdate,
    TruncateItem,
)
from omni.serve.realtime.memory import SessionMemory

_OF_ITEMS = (CreateItem, RetrieveItem, DeleteItem, TruncateItem)
_MAY_PASS: dict[type, tuple[type, ...]] = {
    AppendAudio: (*_OF_ITEMS, CreateResponse),
    ClearAudio: (*_OF_ITEMS, CreateResponse),
    # Not the response that it may be meant for.
    CancelResponse: (*_OF_ITEMS, SessionUpdate, AppendAudio, ClearAudio, CommitAudio),
}
"""The kinds of event that each kind may overtake: speech and cancellations take effect at once."""


class Backlog:
    """most: events that wait."""

    def __init__(self, memory: SessionMemory, most: int) -> None:
        self._memory = memory
        self._most = most
        self._events: deque[tuple[AnyClientEvent, int]] = deque()
        """The first event is being handled, or is about to be."""
        self._there = asyncio.Event()

    def passes(self, event: AnyClientEvent) -> bool:
        """Whether an event can be handled at once: none waits that must come first, and it takes no time itself."""
        if isinstance(event, CreateItem):
            return False
        passed = _MAY_PASS.get(type(event), ())
        return all(isinstance(waiting, passed) for waiting, _ in self._events)

    def put(self, event: AnyClientEvent, size: int) -> None:
        """Adds an event of `size` bytes. Raises InputError, OverloadedError."""
        if len(self._events) >= self._most:
            problem = f"comes while {counted(len(self._events), 'event')} wait for an item"
            raise InputError("event", problem, "wait for its conversation.item.added")
        self._memory.add(size, "event")
        self._events.append((event, size))
        self._there.set()

    @asynccontextmanager
    async def next(self) -> AsyncIterator[AnyClientEvent]:
        """Waits for the next event. It blocks others until the context ends."""
        while not self._events:
            self._there.clear()
            await self._there.wait()
        event, size = self._events[0]
        try:
            yield event
        finally:
            self._events.popleft()
            self._memory.change(-size)
