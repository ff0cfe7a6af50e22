"""The host memory that a chat is counted with."""

import sys
from typing import Any

import numpy as np
import pytest

from omni.api.arguments import CheckedArguments
from omni.api.held import held_by
from omni.api.request import Request, RequestHandle, read_request
from omni.errors import InputError
from omni.frontend.messages import MAX_PARTS
from omni.media import MediaOptions

BIG = np.zeros(50_000, np.uint8)
ARGUMENTS = CheckedArguments(
    modalities=frozenset({"text"}), prepared=frozenset({"text"}), voice=None, sampling={}, fields={}
)


def read(messages: object) -> Request:
    handle = RequestHandle("r0", lambda at, event: None, lambda handle: None)
    return read_request(messages, ARGUMENTS, [handle], MediaOptions(), False)


def parts(number: int) -> list[dict[str, str]]:
    return [{"type": "text", "text": f"text {each}"} for each in range(number)]


def held(value: object) -> int:
    return sum(size for _, size in held_by(value))


@pytest.mark.parametrize(
    "value",
    [[1, 2.5, BIG], (0, [3, BIG]), [{"x": [1, BIG]}, BIG], {"k" * 50_000: 1}],
    ids=["behind numbers", "nested", "twice", "a key"],
)
def test_a_large_value_is_counted_once_wherever_it_is(value: object) -> None:
    assert 50_000 <= held(value) <= 51_000


def test_numbers_are_counted_with_their_list() -> None:
    numbers = [1.5] * 100_000
    assert sys.getsizeof(numbers) <= held(numbers) <= sys.getsizeof(numbers) + 100


def test_many_texts_are_one_sum() -> None:
    texts = parts(5000)
    large = "x" * 10_000
    chat = [{"role": "user", "content": [*texts, {"type": "text", "text": large}]}]
    found = held_by(chat)
    assert [thing for thing, _ in found if isinstance(thing, str)] == [large]
    assert len(found) == 2
    assert held(chat) >= sum(sys.getsizeof(part["text"]) for part in texts) + 10_000


@pytest.mark.parametrize(
    ("chat", "fits"),
    [
        ([{"role": "user", "content": parts(MAX_PARTS)}], True),
        ([{"role": "user", "content": parts(MAX_PARTS + 1)}], False),
        ([{"role": "user", "content": "x"}] * MAX_PARTS, True),
        ([{"role": "user", "content": "x"}] * (MAX_PARTS + 1), False),
        ([{"role": "user", "content": parts(MAX_PARTS // 2)}] * 3, False),
        ([[]] * (MAX_PARTS + 1), False),
        ("x" * 10 * MAX_PARTS, True),
    ],
    ids=["parts", "too many parts", "messages", "too many messages", "together", "no messages", "a text"],
)
def test_a_chat_has_so_many_parts(chat: object, fits: bool) -> None:
    error = read(chat).error
    if fits:
        assert error is None
    else:
        assert isinstance(error, InputError)
        assert str(error) == "messages: have more than 10000 parts; join texts, or send less in one request"


def test_too_many_parts_are_not_even_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(messages: object) -> Any:
        raise AssertionError("it was measured")

    monkeypatch.setattr("omni.api.request.held_by", look)
    error = read([{"role": "user", "content": parts(500_000)}]).error
    assert "have more than 10000 parts" in str(error)


@pytest.mark.parametrize(
    "source",
    ["/big.png", "file:///big.png", "data:image/png;base64,AAAA", "http://127.0.0.1/big.png", {"url": "/big.png"}],
    ids=str,
)
@pytest.mark.parametrize("kind", ["image_url", "input_audio"])
def test_a_chat_with_a_medium_is_no_short_text(kind: str, source: object) -> None:
    if kind == "input_audio" and isinstance(source, dict):
        source = source["url"]
    text = {"type": "text", "text": "x"}
    assert read([{"role": "user", "content": [text]}]).short
    request = read([{"role": "user", "content": [text, {"type": kind, kind: source}]}])
    assert request.error is None
    assert not request.short
