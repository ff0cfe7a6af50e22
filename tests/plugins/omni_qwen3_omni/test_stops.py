"""Where the thinker and the talker stop, and the speech then."""

from collections import Counter
from typing import Any

import pytest

from tests.support.omni_engine import OmniEngine, Result, assert_parity
from tests.support.reference import Answer, chat, reference_of, sound, tiny_checkpoint, with_sampling
from tests.support.tiers import SLOW, few

PROMPTS = [
    "hello", "what is it", "tell me more", "how are you", "find the number", "who said so", "a red square",
    "the blue circle", "go on", "two words", "see you", "come here",
]  # fmt: skip
ASKED = chat("what did she say", sound(0.5), max_text=12, max_codes=20)


@pytest.mark.slow
def test_every_way_to_end() -> None:
    """Of models that readily end by themselves."""
    engine = OmniEngine(tiny_checkpoint(7, stop_gain=1.5, codec_stop_gain=1.5))

    results = assert_parity(engine, [chat(prompt, max_text=24, max_codes=30) for prompt in PROMPTS])

    seen = Counter((result.reasons["thinker"], result.reasons["talker"]) for result in results)
    assert set(seen) == {
        ("stop", "stop"), ("stop", "length"), ("length", "stop"), ("length", "length"), ("stop", "empty")
    }  # fmt: skip
    silent = [result for result in results if result.reasons["talker"] == "stop" and not result.frames]
    assert silent, "no talker ended with its first code"


@pytest.fixture(scope="module")
def engine() -> OmniEngine:
    """Its models end only at their limits."""
    return OmniEngine(tiny_checkpoint(7, stop_gain=0.0, codec_stop_gain=0.0))


@pytest.fixture(scope="module")
def whole(engine: OmniEngine) -> Answer:
    """To `ASKED`."""
    return reference_of(engine.folder).answer(ASKED)


def answer(engine: OmniEngine, stage: str, **sampling: Any) -> Result:
    """To `ASKED` with other sampling at one stage; it is that of transformers."""
    (result,) = assert_parity(engine, [with_sampling(ASKED, stage, **sampling)])
    return result


@pytest.mark.parametrize("tokens", [2, 3, 4])
def test_few_text_tokens(engine: OmniEngine, tokens: int) -> None:
    result = answer(engine, "thinker", max_tokens=tokens)
    assert len(result.ids) == tokens
    assert len(result.frames) == 19


def test_one_text_token_is_text_without_audio(engine: OmniEngine) -> None:
    result = answer(engine, "thinker", max_tokens=1)
    assert len(result.ids) == 1
    assert (result.frames, result.chunks) == ([], [])
    assert (result.reasons["talker"], result.reasons["code2wav"]) == ("empty", "empty")


@pytest.mark.parametrize("codes", [1, 2, 3])
def test_the_last_code_has_no_frame(engine: OmniEngine, codes: int) -> None:
    """The last code has no frame."""
    result = answer(engine, "talker", max_tokens=codes)
    assert len(result.frames) == codes - 1
    assert result.reasons["talker"] == "length"
    assert (result.wave.size > 0) == (codes > 1)


@pytest.mark.parametrize("index", few(2, [0, 11, 1, 5], SLOW))
def test_thinker_stop_ids(engine: OmniEngine, whole: Answer, index: int) -> None:
    """The stop id is given, and stands where the end token would: the talker is conditioned by `tts_eos` in its place."""
    stop = whole.ids[index]
    result = answer(engine, "thinker", stop_token_ids=(stop,))
    assert result.ids[-1] == stop
    assert result.reasons["thinker"] == "stop"


@pytest.mark.parametrize("index", few(1, [18, 0, 1, 7], SLOW))
def test_talker_stop_ids(engine: OmniEngine, whole: Answer, index: int) -> None:
    first_codes = whole.codes[0].tolist()
    result = answer(engine, "talker", stop_token_ids=(first_codes[index],))
    assert len(result.frames) == first_codes.index(first_codes[index])
    assert result.reasons["talker"] == "stop"


def test_an_end_at_the_limit_is_a_stop(engine: OmniEngine, whole: Answer) -> None:
    at = whole.ids.index(whole.ids[-1])
    result = answer(engine, "thinker", stop_token_ids=(whole.ids[-1],), max_tokens=at + 1)
    assert result.ids == whole.ids[: at + 1]
    assert result.reasons["thinker"] == "stop"
