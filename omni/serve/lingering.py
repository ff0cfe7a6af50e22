"""Connections that the server has closed, while their clients do not read the remaining data."""

import asyncio
import time
from collections.abc import Iterable
from typing import Protocol

_PERIOD_SECONDS = 0.5


class _Connection(Protocol):
    transport: asyncio.Transport


class Lingering:
    """asyncio waits for such a client for ever. seconds: that it has."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: dict[asyncio.Transport, float] = {}

    async def run(self, connections: Iterable[_Connection]) -> None:
        """Until it is cancelled. connections: read anew each time."""
        while True:
            self.end(connections, time.perf_counter())
            await asyncio.sleep(_PERIOD_SECONDS)

    def end(self, connections: Iterable[_Connection], now: float) -> None:
        """Ends those that have lingered for too long. now: in seconds."""
        closing = [each.transport for each in connections if each.transport.is_closing()]
        self._since = {transport: self._since.get(transport, now) for transport in closing}
        for transport, since in self._since.items():
            if now - since > self._seconds:
                transport.abort()
