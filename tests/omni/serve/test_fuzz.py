"""Malformed requests: each is an error in OpenAI's shape with a status of 4xx, never 500, and leaves no memory held."""

import base64
import copy
import json
import random
import re
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.omni.serve.http_server import Served, echo_omni, served
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiers import SLOW, few

CHAT: dict[str, Any] = {
    "model": "tiny",
    "modalities": ["text", "audio"],
    "audio": {"voice": "alloy", "format": "wav"},
    "n": 1,
    "stream": True,
    "logprobs": True,
    "top_logprobs": 2,
    "max_completion_tokens": 4,
    "temperature": 0.5,
    "top_p": 0.9,
    "stop": ["x"],
    "seed": 1,
    "logit_bias": {"5": 1.0},
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
    "sampling": {},
    "priority": 0,
    "cache_salt": "a",
    "tools": [],
    "user": "me",
}
COMPLETION: dict[str, Any] = {
    "model": "tiny",
    "prompt": ["once", "twice"],
    "max_tokens": 4,
    "n": 1,
    "logprobs": 2,
    "stop": "x",
    "stream": False,
    "echo": False,
    "suffix": None,
}
SPEECH: dict[str, Any] = {
    "model": "tiny",
    "input": "hello",
    "voice": "alloy",
    "response_format": "wav",
    "stream_format": "sse",
    "instructions": "be kind",
    "speed": 1.0,
    "seed": 1,
    "sampling": {"singer": {"seed": 3}},
}
FORM: dict[str, Any] = {
    "model": "tiny",
    "language": "en",
    "prompt": "names",
    "response_format": "verbose_json",
    "stream": "true",
    "temperature": "0.5",
    "max_tokens": "4",
    "chunking_strategy": "auto",
}
ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2**31,
        2**63,
        2**64,
        -(2**70),
        1e308,
        -0.0,
        1e-320,
        "",
        "a",
        "\0",
        "\ud800",
        "é" * 5000,
    ),
    *(
        "NaN",
        "tiny",
        "audio_",
        "data:",
        "data:image/png;base64,",
        "file:///etc/passwd",
        "http://127.0.0.1/",
        "//",
        "\u202e",
    ),
    *([], {}, [[]], [{}], [None], {"": None}, {"type": "text"}, {"id": 3}, ["text"] * 300, {"a": {"b": {"c": []}}}),
    *(list(range(2000)), {str(i): i for i in range(500)}, {"type": "object", "properties": {"a": {"$ref": "#/x"}}}),
    *("x" * 100_000, "[" * 3000, {"url": None}, {"data": "!", "format": []}),
)


@pytest.fixture(scope="module")
def echo(echo_folder: Path) -> Iterator[Served]:
    """Its answers end, whatever `max_tokens` is. The context holds the longest text to speak."""
    with served(echo_omni(echo_folder, **{"writer.max_length": 5000})) as it:
        yield it


def valid(dice: random.Random, picture: str, sound: bytes) -> tuple[str, dict[str, Any]]:
    """Path and body of a request that is right, or nearly."""
    if dice.random() < 0.2:
        return "/v1/audio/speech", _some(SPEECH, ("model", "input"), dice)
    if dice.random() < 0.3:
        body = {**COMPLETION, "prompt": dice.choice(("once", ["once", "twice"]))}
        return "/v1/completions", _some(body, ("model", "prompt"), dice)
    data = base64.b64encode(sound).decode()
    parts = [
        {"type": "text", "text": "hello"},
        {"type": "image_url", "image_url": {"url": picture, "detail": "auto"}},
        {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{data}"}},
    ]
    messages = [
        {"role": "system", "content": "be kind"},
        {"role": "assistant", "content": "I am", "refusal": None},
        {"role": "user", "content": dice.sample(parts, dice.randint(1, 3))},
    ]
    body = {**CHAT, "messages": messages[dice.randrange(3) :]}
    return "/v1/chat/completions", _some(body, ("model", "messages"), dice)


def _some(body: dict[str, Any], always: tuple[str, ...], dice: random.Random) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name in always or dice.random() < 0.3}


def nested(depth: int) -> Any:
    value: Any = "deep"
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of everything in a JSON value, itself included."""
    found = [path]
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        found += places(each, (*path, key))
    return found


def mutated(value: Any, dice: random.Random) -> Any:
    """A value with something replaced, removed, added, renamed, doubled or moved, once to three times."""
    value = copy.deepcopy(value)
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        path = dice.choice(places(value))
        if not path:
            if dice.random() < 0.05:
                return copy.deepcopy(dice.choice(ODD))
            value["".join(dice.choices(string.printable, k=dice.randint(0, 12)))] = copy.deepcopy(dice.choice(ODD))
            continue
        *above, key = path
        holder = value
        for step in above:
            holder = holder[step]
        match dice.randrange(7):
            case 0 | 1 | 2:
                holder[key] = copy.deepcopy(dice.choice(ODD))
            case 3:
                del holder[key]
            case 4:
                holder[key] = nested(dice.choice((2, 20, 100)))
            case 5 if isinstance(holder, dict):
                holder["".join(dice.choices(string.ascii_letters, k=5))] = holder.pop(key)
            case 5 | 6:
                source: Any = value
                for step in dice.choice(places(value)):
                    source = source[step]
                holder[key] = copy.deepcopy(source)
    return value


def encoded(value: Any, dice: random.Random) -> bytes:
    """As JSON; one in five is broken as bytes."""
    data = json.dumps(value).encode()
    if dice.random() < 0.8:
        return data
    at = dice.randrange(len(data) + 1)
    match dice.randrange(5):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + dice.randbytes(3) + data[at:]
        case 2:
            return data + data
        case 3:
            return data.replace(b'"', b"'", dice.randint(1, 5))
        case _:
            return data.replace(b":", b": NaN,", 1)


HEADERS: tuple[dict[str, str], ...] = (
    {},
    {},
    {"content-type": "text/plain"},
    {"content-type": "application/json; charset=utf-16"},
    {"content-type": "multipart/form-data; boundary=x"},
    {"content-encoding": "gzip"},
    {"x-request-id": "a" * 5000},
    {"authorization": "Bearer of news"},
    {"accept": "nothing/at-all"},
)


def check(response: httpx.Response, sent: bytes) -> bool:
    """Whether it was refused. Otherwise the answer is whole."""
    shown = sent[:2000]
    assert response.status_code == 200 or 400 <= response.status_code < 500, (
        response.status_code,
        response.text,
        shown,
    )
    if response.status_code == 200:
        kind = response.headers["content-type"].partition(";")[0]
        match kind:
            case "text/event-stream":
                last = response.text.removesuffix("\n\n").rpartition("\n\n")[2].removeprefix("data: ")
                whole = last == "[DONE]" or json.loads(last)["type"] in ("speech.audio.done", "transcript.text.done")
            case "application/json":
                whole = bool(response.json().keys() & {"choices", "text"})
            case _:
                whole = len(response.content) > 5
        assert whole, (kind, response.content[:2000], shown)
        return False
    error = response.json()
    assert set(error) == {"error"}, shown
    assert set(error["error"]) == {"message", "type", "param", "code"}, shown
    message, kind, param, code = (error["error"][name] for name in ("message", "type", "param", "code"))
    assert isinstance(message, str), shown
    assert 5 < len(message) < 2000, (message, shown)
    assert not re.search(r"frontend\.|engine\.|max_model_len", message), (message, shown)
    assert kind in ("invalid_request_error", "not_found_error"), (kind, shown)
    assert isinstance(code, str), shown
    assert param is None or (isinstance(param, str) and 0 < len(param) < 500), (param, shown)
    return True


def test_an_answer_without_an_end_ends(echo: Served) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 10**9}
    answer = echo.post("/v1/chat/completions", json=body).json()
    assert (answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", 5000)


@pytest.mark.parametrize(("seed", "count"), few(1, [(1, 60), *((seed, 300) for seed in range(1, 35))], SLOW))
def test_malformed_bodies_are_refused_with_openais_errors(
    echo: Served, seed: int, count: int, picture: str, sound: bytes
) -> None:
    """10,000 in the slow tier."""
    dice = random.Random(seed)
    refused = 0
    with httpx.Client(base_url=echo.url, timeout=PATIENCE_SECONDS) as client:
        for _ in range(count):
            path, whole = valid(dice, picture, sound)
            body = encoded(mutated(whole, dice), dice)
            refused += check(client.post(path, content=body, headers=dice.choice(HEADERS)), body)
    assert refused > count / 2
    echo.assert_nothing_held()


def form(dice: random.Random, sound: bytes) -> tuple[bytes, str]:
    """A form with a recording, whose fields, file or bytes are wrong, and its content type."""
    fields = mutated(_some(FORM, ("model",), dice), dice)
    fields = fields if isinstance(fields, dict) else {"model": fields}
    parts: list[tuple[str, Any]] = []
    for name, value in fields.items():
        for each in value[:70] if isinstance(value, list) else [value]:
            text = each if isinstance(each, str) else json.dumps(each)
            parts.append((name, (None, text.encode(errors="surrogatepass"))))
    at = dice.randrange(len(sound))
    files = (sound, sound, sound, b"", sound[:at], sound[:at] + dice.randbytes(50) + sound[at:], dice.randbytes(5000))
    parts += [(dice.choice(("file", "file", "file", "file", "files")), ("speech.wav", dice.choice(files)))]
    made = httpx.Request("POST", "http://x", files=dice.sample(parts, len(parts)))
    data = made.read()
    if dice.random() < 0.2:
        at = dice.randrange(len(data))
        data = dice.choice(
            (data[:at], data[:at] + dice.randbytes(3) + data[at:], data.replace(b"\r\n", b"\n"), data * 2)
        )
    return data, made.headers["content-type"]


@pytest.mark.parametrize(("seed", "count"), few(1, [(1, 60), *((seed, 300) for seed in range(1, 8))], SLOW))
def test_malformed_forms_are_refused_with_openais_errors(echo: Served, seed: int, count: int, sound: bytes) -> None:
    dice = random.Random(seed)
    refused = 0
    with httpx.Client(base_url=echo.url, timeout=PATIENCE_SECONDS) as client:
        for _ in range(count):
            data, kind = form(dice, sound)
            response = client.post("/v1/audio/transcriptions", content=data, headers={"content-type": kind})
            refused += check(response, data)
    assert count / 2 < refused < count
    echo.assert_nothing_held()
    assert echo.get("/health").status_code == 200
