"""Where the thinker and the talker stop, and what is heard then."""

from collections import Counter

import pytest

from tests.support.omni_engine import OmniEngine, assert_same
from tests.support.reference import Reference, chat, reference_of, sound, tiny_checkpoint, with_sampling

PROMPTS = [
    "hello", "what is it", "tell me more", "how are you", "find the number", "who said so", "a red square",
    "the blue circle", "go on", "two words", "see you", "come here",
]  # fmt: skip
ASKED = chat("what did she say", sound(0.5), max_text=12, max_codes=20)


@pytest.fixture(scope="module")
def stopping() -> tuple[OmniEngine, Reference]:
    """Models that readily end by themselves."""
    folder = tiny_checkpoint(7, stop_gain=1.5, codec_stop_gain=1.5)
    return OmniEngine(folder), reference_of(folder)


@pytest.fixture(scope="module")
def going_on() -> tuple[OmniEngine, Reference]:
    """Models that end only where they are told to."""
    folder = tiny_checkpoint(7, stop_gain=0.0, codec_stop_gain=0.0)
    return OmniEngine(folder), reference_of(folder)


@pytest.mark.slow
def test_every_way_to_end(stopping: tuple[OmniEngine, Reference]) -> None:
    engine, reference = stopping
    chats = [chat(prompt, max_text=24, max_codes=30) for prompt in PROMPTS]

    results = engine.run(chats)

    for result, asked in zip(results, chats, strict=True):
        assert_same(result, reference.answer(asked))
    seen = Counter((result.reasons["thinker"], result.reasons["talker"]) for result in results)
    assert set(seen) == {
        ("stop", "stop"), ("stop", "length"), ("length", "stop"), ("length", "length"), ("stop", "empty")
    }  # fmt: skip
    silent = [result for result in results if result.reasons["talker"] == "stop" and not result.frames]
    assert silent, "no talker ended with its first code"


@pytest.mark.parametrize("tokens", [2, 3, 4])
def test_few_text_tokens(going_on: tuple[OmniEngine, Reference], tokens: int) -> None:
    engine, reference = going_on
    asked = with_sampling(ASKED, "thinker", max_tokens=tokens)

    result = engine.answer(asked)

    assert len(result.ids) == tokens
    assert len(result.frames) == 19
    assert_same(result, reference.answer(asked))


def test_one_text_token_is_text_without_audio(going_on: tuple[OmniEngine, Reference]) -> None:
    engine, reference = going_on
    asked = with_sampling(ASKED, "thinker", max_tokens=1)

    result = engine.answer(asked)

    assert result.ids == reference.answer(asked).ids
    assert len(result.ids) == 1
    assert (result.frames, result.chunks) == ([], [])
    assert (result.reasons["talker"], result.reasons["code2wav"]) == ("empty", "empty")


@pytest.mark.parametrize("codes", [2, 3])
def test_few_codes(going_on: tuple[OmniEngine, Reference], codes: int) -> None:
    """The last code has no frame."""
    engine, reference = going_on
    asked = with_sampling(ASKED, "talker", max_tokens=codes)

    result = engine.answer(asked)

    assert len(result.frames) == codes - 1
    assert_same(result, reference.answer(asked))


def test_one_code_is_no_audio(going_on: tuple[OmniEngine, Reference]) -> None:
    engine, reference = going_on
    asked = with_sampling(ASKED, "talker", max_tokens=1)

    result = engine.answer(asked)

    assert result.ids == reference.answer(asked).ids
    assert result.reasons["talker"] == "length"
    assert (result.frames, result.wave.size) == ([], 0)


@pytest.mark.parametrize("index", [0, 1, 5, 11])
def test_thinker_stop_ids(going_on: tuple[OmniEngine, Reference], index: int) -> None:
    """The stop id is given, and stands where the end token would: the talker hears `tts_eos` in its place."""
    engine, reference = going_on
    stop = reference.answer(ASKED).ids[index]
    asked = with_sampling(ASKED, "thinker", stop_token_ids=(stop,))

    result = engine.answer(asked)

    assert result.ids[-1] == stop
    assert result.reasons["thinker"] == "stop"
    assert_same(result, reference.answer(asked))


@pytest.mark.parametrize("index", [0, 1, 7, 18])
def test_talker_stop_ids(going_on: tuple[OmniEngine, Reference], index: int) -> None:
    engine, reference = going_on
    first_codes = reference.answer(ASKED).codes[0].tolist()
    asked = with_sampling(ASKED, "talker", stop_token_ids=(first_codes[index],))

    result = engine.answer(asked)

    assert len(result.frames) == first_codes.index(first_codes[index])
    assert result.reasons["talker"] == "stop"
    assert_same(result, reference.answer(asked))


def test_an_end_at_the_limit_is_a_stop(going_on: tuple[OmniEngine, Reference]) -> None:
    engine, reference = going_on
    ids = reference.answer(ASKED).ids
    at = ids.index(ids[-1])
    asked = with_sampling(ASKED, "thinker", stop_token_ids=(ids[-1],), max_tokens=at + 1)

    result = engine.answer(asked)

    assert result.ids == ids[: at + 1]
    assert result.reasons["thinker"] == "stop"
    assert_same(result, reference.answer(asked))
