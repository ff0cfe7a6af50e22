"""Sends events to the client."""

import asyncio
from collections import deque

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from omni.serve.disconnect import ClientGone
from omni.serve.realtime.server_events import ServerEvent

_ENCODER = msgspec.json.Encoder()
_ENOUGH = 2**18
"""Maximum number of queued characters, beyond which a sender waits."""


class EventChannel:
    """Events in the order of `put`, written by `run`. Cancelling a sender ends its wait and loses no event."""

    def __init__(self, websocket: WebSocket, stalled_seconds: float) -> None:
        self._websocket = websocket
        self._stalled_seconds = stalled_seconds
        self._texts: deque[str] = deque()
        self._waiting = 0
        self._filled = asyncio.Event()
        self._drained = asyncio.Event()

    def put(self, event: ServerEvent) -> None:
        text = _ENCODER.encode(event).decode()
        self._texts.append(text)
        self._waiting += len(text)
        self._filled.set()

    async def wait(self) -> None:
        """Waits until the client has nearly caught up, for senders of much data."""
        await self._below(_ENOUGH)

    async def flush(self) -> None:
        """Returns when all is written."""
        await self._below(0)

    async def run(self) -> None:
        """Writes until it is cancelled. Raises ClientGone if the client has disconnected, or does not read for too long."""
        while True:
            while not self._texts:
                self._filled.clear()
                await self._filled.wait()
            text = self._texts.popleft()
            try:
                async with asyncio.timeout(self._stalled_seconds):
                    await self._websocket.send_text(text)
            except (TimeoutError, WebSocketDisconnect) as error:
                raise ClientGone from error
            self._waiting -= len(text)
            self._drained.set()

    async def _below(self, most: int) -> None:
        while self._waiting > most:
            self._drained.clear()
            await self._drained.wait()
