"""Many clients, clients that go away or stop reading, and more than there is place for."""

import asyncio
import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from openai import APIError, APIStatusError, AsyncOpenAI

from omni.api import Output
from omni.serve.observer import Observer, RequestObserver
from tests.omni.serve.http_server import Served, echo_omni, served
from tests.support.echo_family import BREAK, EXPLODE, GATES, SAMPLES, eventually
from tests.support.patience import PATIENCE_SECONDS

ENDLESS: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 10**9}
HELLO: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


def held(server: Served) -> int:
    return sum(count for usage in server.omni.usage().values() for count in usage.values())


def test_a_client_that_closes_its_stream_frees_everything(echo: Served) -> None:
    with echo.client() as client:
        stream = client.chat.completions.create(**ENDLESS, stream=True)
        next(iter(stream))
        assert held(echo) > 0
        stream.close()
        echo.assert_nothing_held()


@pytest.mark.parametrize("fields", [ENDLESS, {**ENDLESS, "stream": True}], ids=["whole", "stream"])
def test_a_client_that_goes_before_its_answer_frees_everything(echo: Served, fields: dict[str, Any]) -> None:
    with _connected(echo, fields):
        assert eventually(lambda: held(echo) > 0)
    echo.assert_nothing_held()


def test_a_client_that_goes_during_preparation_is_not_waited_for(echo: Served) -> None:
    with _connected(echo, {**HELLO, "messages": [{"role": "user", "content": "wait disconnect"}]}):
        assert eventually(lambda: echo.server.limits.in_flight == 1)
    try:
        assert eventually(lambda: echo.server.limits.in_flight == 0)
    finally:
        GATES["disconnect"].set()
    echo.assert_nothing_held()


def test_a_client_that_goes_during_its_body_frees_it(echo: Served) -> None:
    with _connected(echo, HELLO, length=10_000):
        assert eventually(lambda: echo.server.limits.held_bytes > 0)
    echo.assert_nothing_held()


def test_a_hundred_clients_that_go_at_random_disturb_nobody(echo: Served) -> None:
    dice = random.Random(1)
    delays = [dice.uniform(0, 0.2) for _ in range(100)]

    async def leave(client: AsyncOpenAI, delay: float) -> None:
        call = client.chat.completions.create(**ENDLESS, stream=True)
        try:
            async with asyncio.timeout(delay):
                async for _ in await call:
                    pass
        except TimeoutError:
            return

    async def main() -> list[str | None]:
        async with echo.async_client() as client:
            left = [asyncio.create_task(leave(client, delay)) for delay in delays]
            asked = {**HELLO, "max_tokens": 60}
            stayed = [client.chat.completions.create(**asked) for _ in range(5)]
            answers = [answer.choices[0].message.content for answer in await asyncio.gather(*stayed)]
            await asyncio.gather(*left)
            return answers

    assert asyncio.run(main()) == ["hello" * 12] * 5
    echo.assert_nothing_held()


@pytest.mark.parametrize("count", [50, pytest.param(200, marks=pytest.mark.slow)])
def test_many_streams_are_served_at_once(echo: Served, count: int) -> None:
    async def one(client: AsyncOpenAI, number: int) -> str:
        messages: Any = [{"role": "user", "content": f"number {number}"}]
        text = ""
        async for chunk in await client.chat.completions.create(model="tiny", messages=messages, stream=True):
            text += chunk.choices[0].delta.content or ""
        return text

    async def main() -> list[str]:
        async with echo.async_client() as client:
            return await asyncio.gather(*(one(client, number) for number in range(count)))

    assert asyncio.run(main()) == [f"number {number}" for number in range(count)]
    echo.assert_nothing_held()


@pytest.fixture(scope="module")
def small(echo_folder: Path) -> Iterator[Served]:
    """Two places, and little patience."""
    with served(echo_omni(echo_folder), max_requests=2, stalled_seconds=0.3, max_held_bytes=5000) as it:
        yield it


def test_more_than_there_is_place_for_is_refused(small: Served) -> None:
    with _connected(small, {**ENDLESS, "n": 2}):
        assert eventually(lambda: small.server.limits.in_flight == 2)
        with small.client() as client, pytest.raises(APIStatusError) as error:
            client.chat.completions.create(**HELLO)
        assert (error.value.status_code, error.value.code) == (503, "overloaded")
        assert error.value.response.headers["retry-after"] == "1"
        assert small.get("/health").status_code == 200
    small.assert_nothing_held()


def test_more_answers_than_there_are_places_are_never_taken(small: Served) -> None:
    """A retry would not help: the client gets the bound."""
    for path, body, param in (
        ("/v1/chat/completions", {**HELLO, "n": 3}, "n"),
        ("/v1/completions", {"model": "tiny", "prompt": "x", "n": 3}, "n"),
        ("/v1/completions", {"model": "tiny", "prompt": ["x", "y", "z"]}, "prompt"),
    ):
        response = small.post(path, json=body)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["message"] == f"{param}: asks for 3 answers; ask for at most 2 in one request"
        assert error["param"] == param
    small.assert_nothing_held()


def test_no_more_bodies_are_read_at_once_than_there_are_places(small: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading JSON and the media in it takes memory and time: a request has its place before."""
    gate = threading.Event()
    reading: list[int] = []

    def decode(body: bytes) -> dict[str, Any]:
        reading.append(len(body))
        assert gate.wait(PATIENCE_SECONDS)
        return json.loads(body)  # type: ignore[no-any-return]

    monkeypatch.setattr("omni.serve.body._LARGE", 0)
    monkeypatch.setattr("omni.serve.body._decode", decode)
    with _connected(small, HELLO), _connected(small, HELLO):
        try:
            assert eventually(lambda: len(reading) == 2)
            response = small.post("/v1/chat/completions", json=HELLO)
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            assert response.json()["error"]["message"].startswith("2 answers are under way, of 2; ")
            assert len(reading) == 2
        finally:
            gate.set()
        small.assert_nothing_held()


def test_a_body_that_comes_when_the_server_is_full_is_refused(small: Served) -> None:
    """Its beginning arrived while a slot was free. A body takes no slot meanwhile: slow clients would exclude others."""
    refused = small.server.limits.refused
    with _connected(small, HELLO, length=4000, sent=2000) as slow:
        assert eventually(lambda: small.server.limits.held_bytes == 2000)
        assert small.server.limits.in_flight == 0
        with _connected(small, {**ENDLESS, "n": 2}):
            assert eventually(lambda: small.server.limits.in_flight == 2)
            slow.sendall(b" " * 1000)
            assert _read(slow) == (503, "1")
            assert small.server.limits.refused == refused + 1
            # The rest of the body is dropped, and the connection remains usable.
            slow.sendall(b" " * 1000 + b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert _read(slow) == (200, None)
    small.assert_nothing_held()


def test_one_answer_under_way_is_singular(small: Served) -> None:
    with _connected(small, ENDLESS):
        assert eventually(lambda: small.server.limits.in_flight == 1)
        error = small.post("/v1/chat/completions", json={**HELLO, "n": 2}).json()["error"]
        assert error["message"].startswith("1 answer is under way, of 2; ")
    small.assert_nothing_held()


def test_the_sdk_retries_after_the_time_in_retry_after(small: Served) -> None:
    refused = small.server.limits.refused
    with _connected(small, {**ENDLESS, "n": 2}) as connection, small.client(retries=1) as client:
        assert eventually(lambda: small.server.limits.in_flight == 2)

        def leave() -> None:
            eventually(lambda: small.server.limits.refused > refused)
            connection.close()

        threading.Thread(target=leave).start()
        since = time.monotonic()
        assert client.chat.completions.create(**HELLO).choices[0].message.content == "hello"
    # Its own first wait is half a second.
    assert time.monotonic() - since >= 1
    assert small.server.limits.refused == refused + 1


def test_bodies_beyond_the_memory_of_all_are_refused(small: Served) -> None:
    with _connected(small, HELLO, length=4500, sent=4000):
        assert eventually(lambda: small.server.limits.held_bytes == 4000)
        response = small.post("/v1/chat/completions", content=json.dumps(HELLO).encode().ljust(1500))
        assert (response.status_code, response.json()["error"]["code"]) == (503, "overloaded")


def test_a_client_that_stops_reading_loses_its_request(small: Served) -> None:
    spoken = {"modalities": ["text", "audio"], "audio": {"voice": "low", "format": "wav"}}
    with _connected(small, {**ENDLESS, **spoken, "stream": True}, buffer=4096):
        assert eventually(lambda: small.server.limits.in_flight == 1)
        assert eventually(lambda: small.server.limits.in_flight == 0, 60)
        small.assert_nothing_held()


def test_an_error_in_a_stream_is_its_last_event(echo: Served) -> None:
    with echo.client() as client:
        messages: Any = [{"role": "user", "content": f"hello{BREAK}"}]
        texts: list[str] = []
        chunks = client.chat.completions.create(model="tiny", messages=messages, stream=True)
        with pytest.raises(APIError, match="its log has the error") as error:
            texts.extend(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert error.value.code == "internal_error"
        assert "".join(texts) == "hell"


def test_an_error_before_a_stream_is_its_status(echo: Served) -> None:
    messages = [{"role": "user", "content": BREAK}]
    response = echo.post("/v1/chat/completions", json={"model": "tiny", "messages": messages, "stream": True})
    assert response.status_code == 500


@pytest.mark.plants_faults
def test_a_closed_stage_is_not_healthy(echo_folder: Path) -> None:
    with served(echo_omni(echo_folder)) as doomed:
        messages = [{"role": "user", "content": f"a{EXPLODE}"}]
        assert doomed.post("/v1/chat/completions", json={"model": "tiny", "messages": messages}).status_code == 503
        assert doomed.get("/health").status_code == 503


class Noting(Observer):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.samples = self.taken = 0

    def started(self, kind: str, answers: int) -> RequestObserver:
        self.notes.append(f"{kind} started {answers}")
        return NotingRequest(self, kind)

    def refused(self, kind: str) -> None:
        self.notes.append(f"{kind} refused")


class NotingRequest(RequestObserver):
    def __init__(self, noting: Noting, kind: str) -> None:
        self._noting = noting
        self._kind = kind

    def output(self, output: Output) -> None:
        self._noting.samples += 0 if output.audio is None else len(output.audio)
        if output.metrics is not None:
            self._noting.notes.append(f"{self._kind} finished")

    def taken(self) -> None:
        self._noting.taken += 1

    def ended(self, error: BaseException | None) -> None:
        self._noting.notes.append(f"{self._kind} ended {type(error).__name__}")


def test_observers_see_every_request(echo_folder: Path) -> None:
    noting = Noting()
    with served(echo_omni(echo_folder), max_requests=2) as it:
        it.server.observers.append(noting)
        it.post("/v1/chat/completions", json={**HELLO, "modalities": ["text", "audio"]})
        it.post("/v1/chat/completions", json={**HELLO, "messages": [{"role": "user", "content": ""}]})
        with _connected(it, {**ENDLESS, "n": 2}):
            assert eventually(lambda: it.server.limits.in_flight == 2)
            it.post("/v1/completions", json={"model": "tiny", "prompt": "x"})
        it.assert_nothing_held()
        assert eventually(lambda: len(noting.notes) == 8)
    assert noting.samples == 5 * SAMPLES
    assert noting.taken > 5
    assert noting.notes == [
        *("chat started 1", "chat finished", "chat ended NoneType"),
        *("chat started 1", "chat ended InputError"),
        *("chat started 2", "completions refused", "chat ended NoneType"),
    ]


def _read(connection: socket.socket) -> tuple[int, str | None]:
    """Status and `Retry-After` of the next response, whose body is read too."""
    connection.settimeout(PATIENCE_SECONDS)
    response = HTTPResponse(connection)
    response.begin()
    response.read()
    return response.status, response.headers["retry-after"]


def _connected(
    server: Served,
    body: dict[str, Any],
    *,
    length: int | None = None,
    sent: int | None = None,
    buffer: int | None = None,
) -> socket.socket:
    """A connection that has sent a chat and does not read. length: of the body as announced. sent: bytes of it, with spaces.
    buffer: of unread data, in bytes."""
    data = json.dumps(body).encode().ljust(sent or 0)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {length or len(data)}\r\n\r\n"
    host, _, port = server.url.removeprefix("http://").partition(":")
    connection = socket.socket()
    if buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.connect((host, int(port)))
    connection.sendall(head.encode() + data)
    return connection
