"""Clients that leave, stall or lie: the server returns to its baseline, and another client's stream continues meanwhile."""

import base64
import json
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpcore
import httpx
import pytest

from tests.omni.media.web import OK, Page, Visit, Web, serve
from tests.omni.serve.http_server import Served, echo_omni, served
from tests.support.echo_family import GATES, eventually
from tests.support.patience import PATIENCE_SECONDS
from tests.support.resources import open_files

pytestmark = pytest.mark.thorough

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hello"}]
ENDLESS: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 10**9, "stream": True}
SPOKEN: dict[str, Any] = {**ENDLESS, "modalities": ["text", "audio"], "audio": {"voice": "low", "format": "pcm16"}}
NEVER_SECONDS = 2 * PATIENCE_SECONDS
"""A time limit of the server that no test reaches: a request that waits for another, which waits for its client, hangs."""


@pytest.fixture(scope="module")
def busy(echo_folder: Path) -> Iterator[Served]:
    """It waits for a client as long as the client is there."""
    times = {"body_seconds": NEVER_SECONDS, "stalled_seconds": NEVER_SECONDS}
    with served(echo_omni(echo_folder), max_requests=300, **times) as it:
        yield it


@pytest.fixture(scope="module")
def impatient(echo_folder: Path) -> Iterator[Served]:
    with served(echo_omni(echo_folder), max_requests=300, body_seconds=1.0) as it:
        yield it


@contextmanager
def bystander(server: Served) -> Iterator[None]:
    """Streams of small pieces beside the block, one after the other: each is whole. The last one may end after the block."""
    stop = threading.Event()
    texts: list[str] = []
    failures: list[BaseException] = []

    def listen() -> None:
        try:
            while not stop.is_set() or not texts:
                texts.append(_streamed(server))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    assert not failures
    assert set(texts) == {"hello" * 100}


def _streamed(server: Served) -> str:
    body = {**ENDLESS, "max_tokens": 500}
    with httpx.stream("POST", f"{server.url}{CHAT}", json=body, timeout=PATIENCE_SECONDS) as response:
        assert response.status_code == 200
        events = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
    return "".join(event["choices"][0]["delta"].get("content", "") for event in events)


@contextmanager
def back_at_baseline(server: Served) -> Iterator[None]:
    """The numbers of files and threads are those of before, and no memory is held."""
    server.post(CHAT, json={"model": "tiny", "messages": MESSAGES})
    server.assert_nothing_held()
    assert eventually(lambda: not server.http.server_state.connections)
    files, threads = open_files(), threading.active_count()
    yield
    server.assert_nothing_held()
    assert eventually(lambda: not server.http.server_state.connections)
    assert eventually(lambda: open_files() <= files), (open_files(), files)
    # The pool of the event loop's helpers has grown at most to its size.
    assert eventually(lambda: threading.active_count() <= threads + 6), (threading.active_count(), threads)


def connection(server: Served, buffer: int | None = None) -> socket.socket:
    host, _, port = server.url.removeprefix("http://").partition(":")
    made = socket.socket()
    if buffer is not None:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    made.settimeout(PATIENCE_SECONDS)
    made.connect((host, int(port)))
    return made


def request(body: dict[str, Any], length: int | None = None) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {length or len(data)}\r\n\r\n"
    return head.encode() + data


def leave(server: Served, dice: random.Random) -> None:
    """At a random byte of the request, or after some of the answer, with or without a farewell."""
    data = request(dice.choice((ENDLESS, SPOKEN, {**ENDLESS, "stream": False}, {**SPOKEN, "n": 3})))
    with connection(server) as one:
        if dice.random() < 0.3:
            one.sendall(data[: dice.randrange(len(data))])
        else:
            one.sendall(data)
            if dice.random() < 0.6:
                one.settimeout(dice.uniform(0.001, 0.1))
                try:
                    while dice.random() < 0.8:
                        one.recv(2**14)
                except TimeoutError:
                    pass
        if dice.random() < 0.5:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextmanager
def one_that_left_and_is_prepared(server: Served) -> Iterator[None]:
    """A client has left; during the block, its request is in the front end, which cannot be interrupted."""
    try:
        with connection(server) as one:
            one.sendall(request({**ENDLESS, "messages": [{"role": "user", "content": "wait storm"}]}))
            assert eventually(lambda: "storm" in GATES)
        yield
    finally:
        GATES.pop("storm").set()


@pytest.mark.parametrize("count", [30, pytest.param(1000, marks=pytest.mark.slow)])
def test_clients_that_leave_at_random_moments_disturb_nobody(busy: Served, count: int) -> None:
    """One of them has work that does not end meanwhile: neither clients that leave after it nor those that stay wait for it."""
    dice = [random.Random(seed) for seed in range(count)]

    def leave_all(part: list[random.Random]) -> None:
        for each in part:
            leave(busy, each)

    with back_at_baseline(busy), one_that_left_and_is_prepared(busy):
        with bystander(busy):
            threads = [threading.Thread(target=leave_all, args=(dice[first::10],)) for first in range(10)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE_SECONDS)
                assert not thread.is_alive()
        assert eventually(lambda: busy.server.limits.in_flight == 0)


def test_slow_readers_disturb_nobody(busy: Served) -> None:
    with back_at_baseline(busy), ExitStack() as stack, bystander(busy):
        slow = [stack.enter_context(connection(busy, buffer=4096)) for _ in range(20)]
        for one in slow:
            one.sendall(request({**SPOKEN, "max_tokens": 20_000}))
        assert eventually(lambda: busy.server.limits.in_flight >= 20)
        for _ in range(30):
            for one in slow:
                assert one.recv(64)
            time.sleep(0.02)


def half_open(server: Served, stack: ExitStack) -> list[socket.socket]:
    """60 connections without data, with a part of the head, or with the head and a part of the body, in turn."""
    data = request(ENDLESS)
    head = data.index(b"\r\n\r\n")
    opened = [stack.enter_context(connection(server)) for _ in range(60)]
    for number, one in enumerate(opened):
        one.sendall((b"", data[: head // 2], data[: head + 10])[number % 3])
    return opened


def test_half_open_connections_disturb_nobody(busy: Served) -> None:
    with back_at_baseline(busy), ExitStack() as stack:
        half_open(busy, stack)
        assert eventually(lambda: len(busy.http.server_state.connections) == 60)
        with bystander(busy):
            pass
        assert len(busy.http.server_state.connections) >= 60


def test_half_open_connections_end(impatient: Served) -> None:
    with back_at_baseline(impatient), ExitStack() as stack:
        answers = [_all(one) for one in half_open(impatient, stack)]
    assert answers[0::3] == answers[1::3] == [b""] * 20
    assert all(b" 408 " in answer for answer in answers[2::3])


def test_slow_bytes_do_not_extend_the_limit_of_a_header(impatient: Served) -> None:
    ended = False
    with connection(impatient) as one:
        try:
            for byte in b"POST /v1/chat/completions HTTP/1.1\r\n" + b"x: y\r\n" * 1000:
                one.sendall(bytes([byte]))
                time.sleep(0.05)
        except OSError:
            ended = True
    assert ended


@pytest.mark.parametrize(("head", "status"), [(request({}, 10**15), b"413"), (b"no head\r\n\r\n", b"400")])
def test_the_rest_of_a_refused_request_is_dropped_for_a_limited_time(
    impatient: Served, head: bytes, status: bytes
) -> None:
    def send_forever() -> None:
        while True:
            one.sendall(bytes(2**10))
            time.sleep(0.01)

    with connection(impatient) as one:
        one.sendall(head)
        assert one.recv(2**16).startswith(b"HTTP/1.1 %s " % status)
        one.sendall(bytes(2**24))
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            send_forever()


def _all(one: socket.socket) -> bytes:
    data = b""
    while piece := one.recv(2**16):
        data += piece
    return data


# Addresses that a request must not reach.

PUBLIC = "93.184.216.34"


def refusal(server: Served, url: str) -> str:
    parts = [{"type": "image_url", "image_url": {"url": url}}]
    response = server.post(CHAT, json={"model": "tiny", "messages": [{"role": "user", "content": parts}]})
    assert response.status_code == 400, (url, response.text)
    assert response.json()["error"]["param"] == "messages[0].content[0].image_url", response.text
    message = str(response.json()["error"]["message"])
    assert "data URI" in message
    assert "frontend." not in message
    return message


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0.0.0.0", "[::1]", "[::]"),
        *("[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]", "169.254.169.254", "10.0.0.1", "192.168.0.1"),
        *("[fd00::1]", "[fe80::1]", "100.64.0.1", "224.0.0.1", "127.0.0.1."),
    ],
)
def test_no_form_of_a_private_address_is_reached(open_to_all: Served, visited: Web, host: str) -> None:
    refusal(open_to_all, f"http://{host}:{visited.port}/x.png")
    assert not visited.heads


@pytest.fixture(scope="module")
def open_to_all(echo_folder: Path) -> Iterator[Served]:
    """It downloads from any public host."""
    settings: dict[str, object] = {"frontend.media.remote": True, "frontend.media.download_seconds": 2.0}
    with served(echo_omni(echo_folder, **settings)) as it:
        yield it


def test_a_picture_of_an_allowed_host_is_downloaded(echo_folder: Path, picture: str) -> None:
    """The host is allowed by its name, and its private address by another setting."""
    data = base64.b64decode(picture.partition(",")[2])

    def show(visit: Visit) -> None:
        visit.send(OK + f"Content-Length: {len(data)}\r\n\r\n".encode() + data)

    media: dict[str, object] = {"allowed_domains": ["localhost"], "private_addresses": True}
    omni = echo_omni(echo_folder, **{f"frontend.media.{name}": value for name, value in media.items()})
    with serve(lambda path: show) as web, served(omni) as server:
        parts = [{"type": "image_url", "image_url": {"url": f"http://localhost:{web.port}/x.png"}}]
        response = server.post(CHAT, json={"model": "tiny", "messages": [{"role": "user", "content": parts}]})
        assert response.json()["choices"][0]["message"]["content"] == "<6x4>"
        refusal(server, f"http://127.0.0.1:{web.port}/x.png")
        assert len(web.heads) == 1


@pytest.fixture
def visited() -> Iterator[Web]:
    """A server at a private address, to which connections are forbidden."""
    with serve(lambda path: _secret) as it:
        yield it


def _secret(visit: Visit) -> None:
    visit.send(OK + b"Content-Length: 6\r\n\r\nsecret")


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "FILE:///etc/passwd", "/etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1:1/"]
)
def test_no_other_scheme_is_opened(open_to_all: Served, url: str) -> None:
    assert "root:" not in refusal(open_to_all, url)


def test_a_name_that_is_private_the_second_time_is_not_reached(
    open_to_all: Served, visited: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rebinding: public at the check, private at the connection. The connection is to the checked address."""
    asked: list[str] = []
    real = socket.getaddrinfo

    def rebinding(host: Any, port: Any, *arguments: Any, **named: Any) -> Any:
        if host != "rebinding.example":
            return real(host, port, *arguments, **named)
        asked.append(host)
        address = "192.0.2.1" if len(asked) == 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    for _ in range(3):
        refusal(open_to_all, f"http://rebinding.example:{visited.port}/x.png")
    assert asked
    assert not visited.heads


def test_a_redirect_to_a_private_address_is_not_followed(
    open_to_all: Served, visited: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A public host, which is here in truth, sends the server to private ones."""
    places = (f"http://127.0.0.1:{visited.port}/", f"http://[::ffff:127.0.0.1]:{visited.port}/", "file:///etc/passwd")
    real, connect = socket.getaddrinfo, httpcore.AnyIOBackend.connect_tcp

    def named(host: Any, port: Any, *arguments: Any, **others: Any) -> Any:
        return real(PUBLIC if host == "public.example" else host, port, *arguments, **others)

    def connected(self: Any, host: str, *arguments: Any, **others: Any) -> Any:
        return connect(self, "127.0.0.1" if host == PUBLIC else host, *arguments, **others)

    def away(path: str) -> Page:
        place = places[int(path.strip("/"))]
        return lambda visit: visit.send(
            f"HTTP/1.1 302 Found\r\nLocation: {place}\r\nContent-Length: 0\r\n\r\n".encode()
        )

    monkeypatch.setattr(socket, "getaddrinfo", named)
    monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", connected)
    with serve(away) as first:
        for number in range(len(places)):
            assert "root:" not in refusal(open_to_all, f"http://public.example:{first.port}/{number}")
        assert len(first.heads) == len(places)
    assert not visited.heads
