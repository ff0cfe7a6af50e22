"""HTTP/1.1 over a connection, as uvicorn speaks it, with a limit to the time that the head of a request may take."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class TimedProtocol(H11Protocol):
    """Closes a connection whose next request does not begin in time: uvicorn itself waits for ever for the rest of a head."""

    head_seconds = 60.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._head_timer: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """The time of a head runs from its first byte on, or from the connection's beginning; later bytes do not prolong it."""
        if self._answers():
            self._unwatch()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self._give_up)

    def _unwatch(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _answers(self) -> bool:
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    def _give_up(self) -> None:
        self._head_timer = None
        # A websocket has a protocol of its own.
        if not self._answers() and self.transport.get_protocol() is self:
            self.transport.close()


def timed_protocol(seconds: float) -> type[TimedProtocol]:
    """A class, as uvicorn takes it. seconds: for a head."""
    return type("TimedProtocol", (TimedProtocol,), {"head_seconds": seconds})
