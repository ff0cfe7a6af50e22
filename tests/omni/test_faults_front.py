"""An exception raised once in the front end or in the text decoder fails one request of several."""

from collections.abc import Iterator

import pytest

from omni import Omni, Result
from omni.frontend.text import IncrementalDecoder
from omni_qwen3_omni.frontend import OmniFrontend
from tests.support.faults import spoil
from tests.support.reference import tiny_checkpoint
from tests.support.tiny_omni import SHAPE, assert_freed, assert_like, lengths, picture, sound, tiny_plugins, user

pytestmark = pytest.mark.thorough

LENGTHS = lengths(8, 12)
CHATS = [user(sound(1), "who is it"), user(picture(1), "what is it"), user("go on"), user(picture(2), sound(2), "how")]


@pytest.fixture(scope="module")
def omni() -> Iterator[Omni]:
    with Omni(tiny_checkpoint(3, **SHAPE), device="cpu", plugins=tiny_plugins()) as omni:
        yield omni


@pytest.fixture(scope="module")
def alone(omni: Omni) -> list[Result]:
    return [omni.generate(chat, sampling=LENGTHS, stream=False) for chat in CHATS]


@pytest.mark.parametrize(
    ("owner", "method", "number", "doing"),
    [
        (OmniFrontend, "prepare", 0, "preparing the request"),
        (OmniFrontend, "prepare", 2, "preparing the request"),
        (IncrementalDecoder, "push", 0, "decoding text"),
        (IncrementalDecoder, "push", 13, "decoding text"),
        (IncrementalDecoder, "finish", 1, "decoding text"),
    ],
)
def test_one_request_fails(
    omni: Omni,
    alone: list[Result],
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    method: str,
    number: int,
    doing: str,
) -> None:
    fault = spoil(monkeypatch, owner, method).plant((owner.__name__, method), number, after=False)
    results = omni.generate(CHATS, sampling=LENGTHS, stream=False)

    assert not fault.left
    (failed,) = [result for result in results if result.error is not None]
    assert str(failed.error).startswith(f"stage 'frontend' failed while {doing}: PlantedError: planted (")
    for result, expected in zip(results, alone, strict=True):
        if result is not failed:
            assert (result.text, result.finish_reasons) == (expected.text, expected.finish_reasons)
            assert_like(result.audio, expected.audio)
    assert_freed(omni)
