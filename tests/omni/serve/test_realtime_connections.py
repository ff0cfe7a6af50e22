"""Connections of realtime sessions: many at once, access, and their end by either side."""

import asyncio
import json
import random
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin, Subprotocol

from tests.omni.serve.http_server import Served, echo_omni, served
from tests.omni.serve.realtime import Client, item_create, session, session_update, speech
from tests.support.echo_family import eventually

pytestmark = pytest.mark.thorough


def test_sessions_at_once_do_not_mix(tidy: Served) -> None:
    async def one(number: int) -> None:
        async with session(tidy) as client:
            await client.manual(instructions=f"i{number}")
            for turn in range(3):
                await client.say(f"{number}.{turn}")
            response = await client.respond()
            expected = f"i{number}|{number}.0|{number}.1|{number}.2"
            assert response.output[0].content[0].transcript == expected

    async def main() -> None:
        await asyncio.gather(*(one(number) for number in range(20)))

    asyncio.run(main())


def test_clients_that_go_at_random_free_everything(tidy: Served) -> None:
    dice = random.Random(1)

    async def leave(delay: float) -> None:
        async with session(tidy) as client:
            await client.update(max_output_tokens=10**9)
            await client.append(speech(0.2))
            await client.say("hello")
            await client.send(type="response.create")
            try:
                async with asyncio.timeout(delay):
                    while True:
                        await client.next()
            except TimeoutError:
                # Without a closing handshake.
                client.connection._connection.transport.abort()

    async def main() -> None:
        await asyncio.gather(*(leave(dice.uniform(0, 0.3)) for _ in range(30)))

    asyncio.run(main())


def _handshake(server: Served, buffer: int | None = None) -> socket.socket:
    """A websocket that reads nothing after its handshake, and answers no ping."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    head = "GET /v1/realtime HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    head += "sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    connection = socket.socket()
    if buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.connect((host, int(port)))
    connection.sendall(head.encode())
    assert connection.recv(12) == b"HTTP/1.1 101"
    return connection


def test_a_half_open_connection_is_ended_by_a_ping(echo_folder: Path) -> None:
    with served(echo_omni(echo_folder), ping_seconds=0.5) as it, _handshake(it):
        assert eventually(lambda: it.server.limits.sessions == 1)
        since = time.monotonic()
        assert eventually(lambda: it.server.limits.sessions == 0)
        assert time.monotonic() - since > 0.4
        it.assert_nothing_held()


def _frame(event: dict[str, Any]) -> bytes:
    """A masked text frame, whose mask is zero."""
    data = json.dumps(event).encode()
    assert len(data) < 2**16
    size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2)
    return b"\x81" + size + b"\0\0\0\0" + data


def test_a_client_that_stops_reading_loses_its_session(echo_folder: Path) -> None:
    events = (session_update(max_output_tokens=10**9), item_create(), {"type": "response.create"})
    patient = {"stalled_seconds": 0.3, "ping_seconds": 3600}
    with served(echo_omni(echo_folder), **patient) as it, _handshake(it, buffer=4096) as connection:
        connection.sendall(b"".join(map(_frame, events)))
        assert eventually(lambda: it.server.limits.in_flight == 1)
        assert eventually(lambda: it.server.limits.in_flight == 0)
        assert eventually(lambda: it.server.limits.sessions == 0)
        it.assert_nothing_held()


def test_a_key_and_a_known_model_are_asked_for(echo_folder: Path) -> None:
    async def status(server: Served, key: str, model: str) -> int:
        client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key=key)
        with pytest.raises(InvalidStatus) as refused:
            async with client, client.realtime.connect(model=model):
                pass
        return int(refused.value.response.status_code)

    async def main(server: Served) -> None:
        assert await status(server, "wrong", "tiny") == 401
        assert await status(server, "secret", "other") == 404
        client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="secret")
        async with client, client.realtime.connect(model="tiny") as connection:
            assert (await Client(connection).next()).type == "session.created"
        # Browsers cannot send headers.
        address = server.url.replace("http", "ws") + "/v1/realtime"
        protocols = [Subprotocol("realtime"), Subprotocol("openai-insecure-api-key.secret")]
        async with connect(address, subprotocols=protocols) as websocket:
            assert websocket.subprotocol == "realtime"
            assert json.loads(await websocket.recv())["type"] == "session.created"

    with served(echo_omni(echo_folder), api_keys=("secret",)) as it:
        asyncio.run(main(it))


def test_pages_of_other_servers_are_kept_out(tidy: Served) -> None:
    address = tidy.url.replace("http", "ws") + "/v1/realtime"

    async def main() -> None:
        async with connect(address, origin=Origin(tidy.url)) as websocket:
            assert json.loads(await websocket.recv())["type"] == "session.created"
        with pytest.raises(InvalidStatus) as refused:
            async with connect(address, origin=Origin("http://evil.example")):
                pass
        assert refused.value.response.status_code == 403
        # Behind a proxy that gives no Host on, browsers that say so are believed.
        own = {"sec-fetch-site": "same-origin"}
        async with connect(address, origin=Origin("https://omni.example"), additional_headers=own) as websocket:
            assert json.loads(await websocket.recv())["type"] == "session.created"
        with pytest.raises(InvalidStatus):
            async with connect(address, origin=Origin(tidy.url), additional_headers={"sec-fetch-site": "cross-site"}):
                pass

    asyncio.run(main())


async def ended(server: Served, tokens: int) -> tuple[list[str], int]:
    """The types of the events from the moment when the server ends, and the code with which the session closes.

    tokens: of the response; 0 for a session without one."""
    async with session(server) as client:
        await client.update(max_output_tokens=tokens or 1)
        if tokens:
            await client.say("hello")
            await client.send(type="response.create")
            await client.until("response.output_audio.delta")
        server.http.should_exit = True
        seen = len(client.events)
        with pytest.raises(ConnectionClosed) as closed:
            await client.until("none of them")
        assert closed.value.rcvd is not None
        return [event.type for event in client.events[seen:]], closed.value.rcvd.code


@pytest.mark.parametrize(
    ("tokens", "drain_seconds", "done"),
    [(2000, 600, True), (10**9, 1, False), (0, 600, False)],
    ids=["a response", "an endless one", "none"],
)
def test_sessions_end_with_their_response_when_the_server_does(
    echo_folder: Path, tokens: int, drain_seconds: int, done: bool
) -> None:
    with served(echo_omni(echo_folder), drain_seconds=drain_seconds) as it:
        types, code = asyncio.run(ended(it, tokens))
        assert (types[-1:] == ["response.done"]) == done
        assert code == 1012
        assert eventually(lambda: (it.server.limits.sessions, it.server.limits.in_flight) == (0, 0))
