"""Keys, ids, models, health, bodies and media: accepted and refused requests."""

import asyncio
import json
import logging
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from openai import AuthenticationError, NotFoundError, OpenAI
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from omni.errors import ConfigError, InputError, OverloadedError
from omni.frontend.limit import LongPromptError
from omni.serve import create_app
from omni.serve.errors import ENGINE_FAILED, HttpError, renamed, reported
from tests.omni.serve.http_server import Served, echo_omni, served
from tests.support.echo_family import BREAK_LOOP, OPENED, eventually
from tests.support.patience import PATIENCE_SECONDS

CHAT = "/v1/chat/completions"
HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(scope="module")
def locked(echo_folder: Path) -> Iterator[Served]:
    """A server with keys and small limits, which opens files below the model's folder."""
    omni = echo_omni(echo_folder, **{"frontend.media.local_folder": str(echo_folder)})
    names = ("tiny", "org/tiny")
    with served(omni, api_keys=("one", "two"), model_names=names, max_body_bytes=2000, body_seconds=0.3) as it:
        yield it


@pytest.mark.parametrize("key", ["one", "two"])
def test_any_of_the_keys_is_served(locked: Served, key: str) -> None:
    with locked.client(key=key) as client:
        assert [model.id for model in client.models.list()] == ["tiny", "org/tiny"]
        assert client.models.retrieve("org/tiny").object == "model"


@pytest.mark.parametrize("key", ["three", "on", "onee", "ONE", "a b"])
def test_another_key_is_refused(locked: Served, key: str) -> None:
    with locked.client(key=key) as client, pytest.raises(AuthenticationError) as error:
        client.models.list()
    assert error.value.code == "invalid_api_key"


@pytest.mark.parametrize("header", ["", "one", "Basic one", "Bearer", "Bearer \xff"])
def test_no_key_is_refused(locked: Served, header: str) -> None:
    sent = {"authorization": header.encode("latin-1")} if header else {}
    response = locked.post(CHAT, json=HELLO, headers=sent)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)]
)
def test_pages_of_other_servers_are_refused_without_a_key(echo: Served, site: str, status: int) -> None:
    """A browser sends their text without a question."""
    headers = {"sec-fetch-site": site, "content-type": "text/plain"}
    response = echo.post(CHAT, content=json.dumps(HELLO), headers=headers)
    assert response.status_code == status
    if status == 403:
        assert (response.json()["error"]["code"], response.json()["error"]["param"]) == (
            "forbidden_origin",
            "Sec-Fetch-Site",
        )


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/audio/speech", "/v1/audio/transcriptions"])
def test_pages_without_fetch_metadata_are_told_by_their_origin(echo: Served, path: str) -> None:
    """Browsers leave `Sec-Fetch-Site` out where the server is another machine's, without TLS."""
    for origin in ("http://evil.example", "null", echo.url.replace("127.0.0.1", "localhost")):
        response = echo.post(path, content=b"{}", headers={"origin": origin, "content-type": "text/plain"})
        assert (response.status_code, response.json()["error"]["param"]) == (403, "Origin")
    assert echo.post(path, content=b"{}", headers={"origin": echo.url}).status_code in (400, 415)


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://rebound.example", 403),
        ("http://rebound.example:8000", 403),
        ("http://127.0.0.1.example", 403),
        ("http://local.example.", 403),
        ("https://rebound.example", 200),
        ("http://192.168.1.5:8000", 200),
        ("http://[fd00::1]:8000", 200),
        ("http://localhost:8000", 200),
        ("http://omni:8000", 200),
        ("http://omni.default.svc.cluster.local", 200),
        ("http://Here.example:8000", 200),
    ],
)
def test_a_name_that_a_stranger_may_own_is_no_own_page(
    echo: Served, monkeypatch: pytest.MonkeyPatch, origin: str, status: int
) -> None:
    """A page from there, whose name then points to this machine, has the same origin."""
    monkeypatch.setattr(socket, "gethostname", lambda: "here.example")
    headers = {"origin": origin, "host": origin.partition("//")[2]}
    response = echo.post(CHAT, json=HELLO, headers=headers)
    assert response.status_code == status
    if status == 403:
        assert (response.json()["error"]["code"], response.json()["error"]["param"]) == ("forbidden_origin", "Host")


def test_a_page_with_a_key_is_served(locked: Served) -> None:
    headers = {"sec-fetch-site": "cross-site", "authorization": "Bearer one"}
    assert locked.post(CHAT, json=HELLO, headers=headers).status_code == 200


def test_health_needs_no_key(locked: Served) -> None:
    assert locked.get("/health").json() == {"status": "ok"}


def test_an_unknown_model_is_named(client: OpenAI) -> None:
    with pytest.raises(NotFoundError, match="use 'tiny'"):
        client.models.retrieve("other")


@pytest.mark.parametrize(
    ("path", "status", "code"), [("/v2/none", 404, "not_found"), (CHAT, 405, "method_not_allowed")]
)
def test_unknown_paths_have_errors_of_the_same_shape(echo: Served, path: str, status: int, code: str) -> None:
    response = echo.get(path)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (rb'{"messages": [{"role": "user", "content": "a\ud800"}]}', "messages[0].content"),
        (
            rb'{"messages": [{"role": "user", "content": [{"type": "text", "text": "\udc00b"}]}]}',
            "messages[0].content[0].text",
        ),
        (b'{"user": "\xed\xa0\x80"}', "user"),
        (rb'{"metadata": {"\ud800": 1}}', "metadata.\\ud800"),
        (rb'["\ud800"]', "[0]"),
    ],
)
def test_a_lone_surrogate_is_named_by_its_field(echo: Served, body: bytes, param: str) -> None:
    response = echo.post(CHAT, content=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, param, "invalid_value")
    assert "surrogate" in error["message"]


CHUNKED = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "data",
    [
        *(b"hello\r\n\r\n", b"GET / HTTP/x\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\r\n\r\n"),
        *(b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 20_000, b"GET / HTTP/1.1\r\nhost: x\r\nno field\r\n\r\n"),
        *(CHUNKED + b"zz\r\n", CHUNKED + b"5\r\nhello\r\nzz\r\n"),
    ],
    ids=["words", "version", "no host", "tls", "long head", "no field", "chunk", "later chunk"],
)
def test_malformed_http_has_an_error_of_the_same_shape(
    echo: Served, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    caplog.set_level(logging.INFO, "omni.serve")
    with raw_connection(echo) as connection:
        connection.sendall(data)
        response = HTTPResponse(connection)
        response.begin()
        body = json.loads(response.read())
        assert connection.recv(1) == b""
    assert (response.status, response.headers["content-type"]) == (400, "application/json")
    assert body["error"].pop("message").startswith("request: cannot be read as HTTP/1.1; ")
    assert body["error"] == {"type": "invalid_request_error", "param": "request", "code": "invalid_http"}
    assert f"{response.headers['x-request-id']} is refused: " in caplog.text
    echo.assert_nothing_held()


def test_a_body_that_turns_wrong_after_its_answer_ends_the_connection(
    echo: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """A refusal does not wait for the body; errors in the rest of it do not change the answer."""
    with raw_connection(echo) as connection:
        connection.sendall(CHUNKED.replace(b"chat/completions", b"nothing"))
        response = HTTPResponse(connection)
        response.begin()
        assert response.status == 404
        response.read()
        connection.sendall(b"zz\r\n")
        assert connection.recv(1) == b""
    # It is not a failure of the server.
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@contextmanager
def raw_connection(server: Served) -> Iterator[socket.socket]:
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), PATIENCE_SECONDS) as connection:
        yield connection


def test_a_request_keeps_its_id(echo: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "omni.serve"):
        named = echo.post(CHAT, json={**HELLO, "model": "other"}, headers={"x-request-id": "mine-1"})
        assert named.headers["x-request-id"] == "mine-1"
        forged = echo.post(CHAT, json=HELLO, headers={"x-request-id": "a b\tc"})
        assert forged.headers["x-request-id"].startswith("req_")
    assert "mine-1 is refused: model: 'other' is not served here; use 'tiny'" in caplog.messages
    assert any(line.startswith(f"mine-1 POST {CHAT} 404 ") for line in caplog.messages)


def test_a_path_cannot_forge_a_line_of_the_log(echo: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "omni.serve"):
        assert echo.get("/v1/models/a%0Dforged%00%1b[31m").status_code == 404
        # It is written when the response is sent.
        assert eventually(lambda: any("forged" in line and " 404 " in line for line in caplog.messages))
    assert all(line.isprintable() for line in caplog.messages), caplog.messages


def test_no_websocket_is_told_so_in_the_same_shape(echo: Served) -> None:
    """A proxy that gives no websockets on makes a plain request of a session's."""
    plain = echo.get("/v1/realtime")
    assert (plain.status_code, plain.headers["upgrade"]) == (426, "websocket")
    assert plain.json()["error"]["code"] == "websocket_required"

    async def refused(path: str) -> Any:
        with pytest.raises(InvalidStatus) as error:
            async with connect(
                f"{echo.url.replace('http', 'ws')}{path}", additional_headers={"x-request-id": "mine-2"}
            ):
                pass
        return error.value.response

    for path, param in (("/v1/none", "path"), (CHAT, "path"), ("/v1/realtime?model=other", "model")):
        response = asyncio.run(refused(path))
        assert (response.status_code, response.headers["x-request-id"]) == (404, "mine-2")
        assert json.loads(response.body)["error"]["param"] == param


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff",
        b"{}",
        b'{"model": 1}',
        b'{"a":' * 3000,
        b'{"model": "tiny", "n": NaN}',
    ],
)
def test_malformed_bodies_are_refused(echo: Served, body: bytes) -> None:
    response = echo.post(CHAT, content=body)
    assert response.status_code == 400
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("n", [0, -1, 65, 2**31, 2**64])
@pytest.mark.parametrize("stream", [False, True])
def test_more_answers_than_there_can_be_are_refused_at_once(echo: Served, n: int, stream: bool) -> None:
    for path, body in ((CHAT, HELLO), ("/v1/completions", {"model": "tiny", "prompt": ["hello", "you"]})):
        response = echo.post(path, json={**body, "n": n, "stream": stream})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "n")


def test_more_prompts_than_a_request_may_have_are_refused(echo: Served) -> None:
    response = echo.post("/v1/completions", json={"model": "tiny", "prompt": ["x"] * 2049})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt")


def test_clients_that_first_send_a_body_learn_what_is_wrong_with_its_head(echo: Served) -> None:
    for _ in range(3):
        client = HTTPConnection(echo.url.removeprefix("http://"), timeout=PATIENCE_SECONDS)
        with closing(client):
            client.request("POST", CHAT, b" " * 2**24, {"x": "y" * 70_000})
            response = client.getresponse()
            assert response.status == 400
            assert json.load(response)["error"]["code"] == "invalid_http"


@pytest.mark.parametrize("chunked", [False, True])
def test_clients_that_first_send_a_large_body_get_the_refusal(echo_folder: Path, chunked: bool) -> None:
    """The body is larger than all buffers: if the connection were closed, the client would fail while it sends."""
    body = b" " * 2**24
    with served(echo_omni(echo_folder), max_body_bytes=2000) as server:
        client = HTTPConnection(server.url.removeprefix("http://"), timeout=PATIENCE_SECONDS)
        with closing(client):
            for _ in range(3):  # on one connection
                client.request("POST", CHAT, iter([body]) if chunked else body, encode_chunked=chunked)
                response = client.getresponse()
                assert response.status == 413
                assert json.load(response)["error"]["param"] == "body"


def test_a_large_body_is_refused_by_its_header_and_by_its_bytes(locked: Served) -> None:
    def pieces() -> Iterator[bytes]:
        yield json.dumps(HELLO).encode()
        yield b" " * 4000

    key = {"authorization": "Bearer one"}
    assert locked.post(CHAT, content=b" " * 2001, headers=key).status_code == 413
    assert locked.post(CHAT, content=pieces(), headers=key).status_code == 413
    assert locked.post(CHAT, content=json.dumps(HELLO).encode().ljust(2000), headers=key).status_code == 200


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1/x.png", "media are not downloaded here"),
        ("https://example.com/x.png", "media are not downloaded here"),
        ("file:///etc/hostname", "local"),
        ("/etc/hostname", "local"),
    ],
)
def test_nothing_is_opened_that_is_not_allowed(echo: Served, url: str, words: str) -> None:
    parts = [{"type": "image_url", "image_url": {"url": url}}]
    response = echo.post(CHAT, json={"model": "tiny", "messages": [{"role": "user", "content": parts}]})
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]
    assert response.json()["error"]["param"] == "messages[0].content[0].image_url"


@pytest.mark.parametrize(
    ("url", "problem", "setting"),
    [
        ("https://example.com/x.png", "is a URL, and media are not downloaded here", "set frontend.media.remote"),
        ("file:///etc/hostname", "is a path, and local files are not opened here", "set frontend.media.local"),
    ],
)
def test_a_refusal_of_media_has_remedies_for_client_and_operator(
    echo: Served, caplog: pytest.LogCaptureFixture, url: str, problem: str, setting: str
) -> None:
    caplog.set_level(logging.INFO, "omni.serve")
    parts = [{"type": "image_url", "image_url": {"url": url}}]
    for stream in (False, True):
        body = {"model": "tiny", "messages": [{"role": "user", "content": parts}], "stream": stream}
        message = echo.post(CHAT, json=body).json()["error"]["message"]
        assert message == f"messages[0].content[0].image_url: {problem}; send the file itself as a data URI"
        assert any(line.endswith(f" is refused: {message} (the operator can {setting})") for line in caplog.messages)
        caplog.clear()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            LongPromptError("prompt", "is long", "shorten it", 9, "raise text.max_model_len"),
            "prompt: is long; shorten it",
        ),
        (
            HttpError(403, "x", "Origin", "is odd", "leave", operator_remedy="serve with --api-key"),
            "Origin: is odd; leave",
        ),
        (
            OverloadedError("engine.max_waiting_bytes", "much waits", "retry later", "raise it"),
            "much waits; retry later",
        ),
    ],
)
def test_settings_of_the_operator_are_for_the_log_alone(
    caplog: pytest.LogCaptureFixture, error: InputError | OverloadedError, message: str
) -> None:
    caplog.set_level(logging.INFO, "omni.serve")
    named = renamed(error, str) if isinstance(error, InputError) else error
    assert reported(named, "req_1", 1).body.error.message == message
    assert caplog.messages == [
        f"req_1 is refused: {error.field}: {error.problem}; {error.remedy} (the operator can {error.operator_remedy})"
    ]


def test_files_are_opened_below_the_allowed_folder_alone(
    locked: Served, echo_folder: Path, sound: bytes, tmp_path: Path
) -> None:
    for folder, status in ((echo_folder, 200), (tmp_path, 400)):
        (folder / "sound.wav").write_bytes(sound)
        parts = [{"type": "audio_url", "audio_url": {"url": f"file://{folder}/sound.wav"}}]
        body = {"model": "tiny", "messages": [{"role": "user", "content": parts}]}
        response = locked.post(CHAT, json=body, headers={"authorization": "Bearer one"})
        assert response.status_code == status, response.text
    assert "messages[0].content[0].audio_url" in response.json()["error"]["message"]


def test_a_dead_engine_is_not_healthy(echo_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with served(echo_omni(echo_folder)) as doomed:
        assert doomed.get("/health").status_code == 200
        dies = {"model": "tiny", "messages": [{"role": "user", "content": f"a{BREAK_LOOP}"}]}
        died = doomed.post(CHAT, json=dies, headers={"x-request-id": "said-here"})
        assert died.status_code == 503
        health = doomed.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "failed")
        again = doomed.post(CHAT, json=HELLO)
        assert (again.status_code, again.json()["error"]["code"]) == (503, "engine_failed")
        # A retry would not help, and details of the failure are in the log only.
        assert "retry-after" not in again.headers
        for response in (died, again):
            assert response.json()["error"]["message"] == ENGINE_FAILED
    assert any("said-here" in line and "boom" in line for line in caplog.messages)


def test_a_bug_of_a_plugin_is_logged_and_not_shown_to_the_client(
    echo: Served, caplog: pytest.LogCaptureFixture
) -> None:
    response = echo.post(CHAT, json={"model": "tiny", "messages": [{"role": "user", "content": "crash"}]})
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert "a bug" not in response.text
    assert any("a bug" in line for line in caplog.messages)


def test_a_model_that_opens_anything_is_not_served(echo_folder: Path) -> None:
    omni = echo_omni(echo_folder, **{"frontend.media.strict": False})
    try:
        with pytest.raises(ConfigError, match=r"frontend\.media\.strict: is not set"):
            create_app(omni)
    finally:
        asyncio.run(omni.close())


def test_a_priority_is_taken_where_it_is_allowed(echo: Served, echo_folder: Path) -> None:
    for path, body in ((CHAT, HELLO), ("/v1/completions", {"model": "tiny", "prompt": "hello"})):
        for stream in (False, True):
            asked = {**body, "priority": -1, "stream": stream}
            refused = echo.post(path, json=asked)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "priority")
            assert refused.json()["error"]["message"] == "priority: is not taken here; leave it out"
            assert echo.post(path, json={**asked, "priority": 0}).status_code == 200
    with served(echo_omni(echo_folder), client_priority=True) as trusting:
        assert trusting.post(CHAT, json={**HELLO, "priority": -1}).status_code == 200
        assert OPENED[-1].order[0] == -1


@pytest.mark.parametrize("detail", ["auto", "low", "high", "original"])
def test_a_picture_is_taken_in_every_detail_of_openai(echo: Served, picture: str, detail: str) -> None:
    hint = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    parts = [{"type": "image_url", "image_url": {"url": picture, "detail": detail}, **hint}]
    response = echo.post(CHAT, json={"model": "tiny", "messages": [{"role": "user", "content": parts}]})
    assert response.json()["choices"][0]["message"]["content"] == "<6x4>"


@pytest.mark.parametrize("detail", ["lower", 3, ["low"], {"low": 1}])
def test_another_detail_is_refused(echo: Served, picture: str, detail: object) -> None:
    parts = [{"type": "image_url", "image_url": {"url": picture, "detail": detail}}]
    response = echo.post(CHAT, json={"model": "tiny", "messages": [{"role": "user", "content": parts}]})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages[0].content[0].image_url.detail"


@pytest.mark.parametrize("stream", [False, True])
def test_a_stages_refusal_names_the_field(echo: Served, stream: bool) -> None:
    """It is found when the request is prepared: asking an engine's process would block the event loop."""
    response = echo.post(CHAT, json={**HELLO, "stop_token_ids": [10**6], "stream": stream})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "stop_token_ids")
