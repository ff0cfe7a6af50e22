"""What one connection may take of the event loop and of memory: floods of small pieces."""

import asyncio
import base64
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.websockets import WebSocket

from omni.serve.fair_reads import FairReads
from omni.serve.limits import HeldBody
from omni.serve.realtime.memory import SessionMemory
from omni.serve.realtime.session import RealtimeSession
from omni.serve.realtime.settings import first_settings
from omni.serve.websocket_protocol import MOST_FRAMES
from tests.omni.serve.test_storm import connection
from tests.support.echo_family import eventually
from tests.support.http_server import Served, echo_omni, served


class _Slow(FairReads):
    """A parser that needs `seconds` for a byte, on a clock of its own."""

    def __init__(self, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self._seconds = seconds
        self._now = 0.0
        self.data = b""
        monkeypatch.setattr(time, "perf_counter", lambda: self._now)

    def data_received(self, data: bytes) -> None:
        self.data += data
        self._now += self._seconds * len(data)

    def read(self, waiting: bytes) -> list[int]:
        """As asyncio does. Returns the sizes of the reads."""
        sizes = []
        while waiting:
            buffer = self.get_buffer(-1)
            size = min(len(buffer), len(waiting))
            buffer[:size], waiting = waiting[:size], waiting[size:]
            self.buffer_updated(size)
            sizes.append(size)
        return sizes


def test_less_is_read_at_once_where_bytes_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, data = _Slow(6e-6, monkeypatch), os.urandom(2**17)
    sizes = slow.read(data)
    assert slow.data == data
    assert max(sizes[2:]) <= 2**10


def test_more_is_read_at_once_where_bytes_take_little(monkeypatch: pytest.MonkeyPatch) -> None:
    fast, data = _Slow(1e-9, monkeypatch), os.urandom(2**20)
    sizes = fast.read(data)
    assert fast.data == data
    assert max(sizes) == 2**16
    assert len(sizes) < 30


@pytest.fixture(scope="module")
def quiet(echo_folder: Path) -> Iterator[Served]:
    with served(echo_omni(echo_folder)) as it:
        yield it


def _frame(opcode: int, data: bytes = b"", *, last: bool = True) -> bytes:
    """Of a client, up to 125 bytes, with a mask of zeros."""
    return struct.pack("!BBI", last << 7 | opcode, 0x80 | len(data), 0) + data


@pytest.fixture
def opened(quiet: Served) -> Iterator[Any]:
    """A session's socket, after its first event."""
    with connection(quiet, buffer=2**12) as one:
        key = base64.b64encode(bytes(16)).decode()
        upgrade = f"upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-key: {key}\r\nsec-websocket-version: 13"
        one.sendall(f"GET /v1/realtime HTTP/1.1\r\nhost: x\r\n{upgrade}\r\n\r\n".encode())
        received = b""
        while b"session.created" not in received:
            received += one.recv(2**16)
        yield one
    assert eventually(lambda: quiet.server.limits.sessions == 0)
    quiet.assert_nothing_held()


def test_a_message_without_an_end_ends_the_session(opened: Any) -> None:
    """Empty frames add nothing to the size of a message."""
    opened.sendall(_frame(1, last=False) + _frame(0, last=False) * MOST_FRAMES)
    received = b""
    while piece := opened.recv(2**16):
        received += piece
    assert struct.pack("!H", 1009) + f"more than {MOST_FRAMES:,} frames".encode() in received


def test_answers_to_pings_are_not_kept_for_a_client_that_does_not_read(quiet: Served, opened: Any) -> None:
    (websocket,) = quiet.http.server_state.connections
    pings, kept = _frame(9, b"x" * 125) * 1000, 0
    for _ in range(100):
        opened.sendall(pings)
        kept = max(kept, websocket.transport.get_write_buffer_size())
    assert kept < 2**20


class _Flood:
    """A websocket from which everything can be received at once. turns: of another task, so far."""

    COUNT = 500

    def __init__(self) -> None:
        self.turns = 0
        self._left = self.COUNT

    async def receive(self) -> dict[str, str]:
        self._left -= 1
        if self._left < 0:
            return {"type": "websocket.disconnect"}
        return {"type": "websocket.receive", "text": '{"type": "input_audio_buffer.append", "audio": ""}'}

    async def send_text(self, text: str) -> None:
        pass

    async def other(self) -> None:
        while self._left >= 0:
            await asyncio.sleep(0)
            self.turns += 1


def test_others_have_their_turn_between_two_events(quiet: Served) -> None:
    server = quiet.server
    memory = SessionMemory(HeldBody(server.limits), server.options.max_session_bytes)

    async def run(flood: _Flood) -> None:
        settings = first_settings(server, "tiny")
        session = RealtimeSession(server, cast(WebSocket, flood), memory, settings, "flood")
        await asyncio.gather(session.run(), flood.other())

    flood = _Flood()
    asyncio.run(run(flood))
    assert flood.turns >= _Flood.COUNT
