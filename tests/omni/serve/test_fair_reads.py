"""The share of one connection of the event loop, of memory and of files."""

import asyncio
import base64
import json
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPResponse
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
from tests.omni.serve.http_server import Served, echo_omni, served
from tests.omni.serve.test_storm import SPOKEN, connection, request
from tests.support.echo_family import eventually


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
    assert max(sizes) == 2**18
    assert len(sizes) < 30


@pytest.fixture(scope="module")
def quiet(echo_folder: Path) -> Iterator[Served]:
    with served(echo_omni(echo_folder)) as it:
        yield it


def _frame(opcode: int, data: bytes = b"", *, last: bool = True) -> bytes:
    """Of a client, up to 125 bytes, with a mask of zeros."""
    return struct.pack("!BBI", last << 7 | opcode, 0x80 | len(data), 0) + data


def upgrade(one: socket.socket, fields: str = "", path: str = "/v1/realtime") -> None:
    """fields: of the head, in place of those of the same name."""
    head = {
        "host": "x",
        "upgrade": "websocket",
        "connection": "upgrade",
        "sec-websocket-key": base64.b64encode(bytes(16)).decode(),
        "sec-websocket-version": "13",
    }
    head |= dict(field.split(": ") for field in fields.split("\r\n") if field)
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items()), "", ""]
    one.sendall("\r\n".join(lines).encode())


@pytest.fixture
def opened(quiet: Served) -> Iterator[Any]:
    """A session's socket, after its first event."""
    with connection(quiet, buffer=2**12) as one:
        upgrade(one)
        received = b""
        while b"session.created" not in received:
            received += one.recv(2**16)
        yield one
    assert eventually(lambda: quiet.server.limits.sessions == 0)
    quiet.assert_nothing_held()


def test_a_message_without_an_end_ends_the_session(opened: Any) -> None:
    """Empty frames do not add to the size of a message."""
    opened.sendall(_frame(1, last=False) + _frame(0, last=False) * MOST_FRAMES)
    received = b""
    while piece := opened.recv(2**16):
        received += piece
    assert struct.pack("!H", 1009) + f"more than {MOST_FRAMES:,} frames".encode() in received


def test_what_a_refused_client_still_sends_is_dropped_for_a_while(
    quiet: Served, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send_forever() -> None:
        while True:
            opened.sendall(bytes(2**10))
            time.sleep(0.01)

    (websocket,) = quiet.http.server_state.connections
    monkeypatch.setattr(websocket, "close_timeout", 0.5)
    opened.sendall(b"\x81\xff" + (2**40).to_bytes(8, "big") + bytes(4))
    received = b""
    while piece := opened.recv(2**16):
        received += piece
    assert struct.pack("!H", 1009) in received
    opened.sendall(bytes(2**24))
    with pytest.raises(OSError, match=r"reset|Broken pipe"):
        send_forever()


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


def test_other_tasks_run_between_two_events(quiet: Served) -> None:
    server = quiet.server
    memory = SessionMemory(HeldBody(server.limits), server.options.max_session_bytes)

    async def run(flood: _Flood) -> None:
        settings = first_settings(server, "tiny")
        session = RealtimeSession(server, cast(WebSocket, flood), memory, settings, "flood")
        await asyncio.gather(session.run(), flood.other())

    flood = _Flood()
    asyncio.run(run(flood))
    assert flood.turns >= _Flood.COUNT


@pytest.fixture
def impatient(echo_folder: Path) -> Iterator[Served]:
    with served(echo_omni(echo_folder), stalled_seconds=0.5, ping_seconds=1.0) as it:
        yield it


def test_a_client_that_reads_nothing_leaves_no_connection(impatient: Served) -> None:
    """Neither of a stream nor of a session; the rest of the data to send is dropped."""
    update = {"type": "session.update", "session": {"type": "realtime", "instructions": "x" * 60_000}}
    data = json.dumps(update).encode()
    with connection(impatient, buffer=2**12) as one, connection(impatient, buffer=2**12) as other:
        one.sendall(request(SPOKEN))
        upgrade(other)
        other.settimeout(1)
        with suppress(OSError):
            while True:
                other.sendall(struct.pack("!BBHI", 0x81, 0x80 | 126, len(data), 0) + data)
        assert eventually(lambda: not impatient.http.server_state.connections)


@pytest.mark.parametrize(
    "fields",
    [
        "sec-websocket-version: 7",
        "sec-websocket-key: short",
        "sec-websocket-protocol: @@",
        "x: " + "x" * 9000,
        "\r\n".join(f"x-{index}: x" for index in range(200)),
    ],
)
def test_a_wrong_handshake_is_refused_in_openais_shape(quiet: Served, fields: str) -> None:
    with connection(quiet) as one:
        upgrade(one, fields)
        response = HTTPResponse(one)
        response.begin()
        assert response.status == 400
        assert response.headers["x-request-id"]
        assert json.loads(response.read())["error"]["code"] == "invalid_handshake"


def test_a_refused_websocket_is_no_error_of_the_server(quiet: Served, caplog: pytest.LogCaptureFixture) -> None:
    with connection(quiet) as one:
        upgrade(one, path="/v1/elsewhere")
        while one.recv(2**16):
            pass
    assert eventually(lambda: not quiet.http.server_state.connections)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
