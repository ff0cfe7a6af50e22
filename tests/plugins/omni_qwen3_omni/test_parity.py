"""Single requests against transformers: text tokens and codes of every group equal, waveform within 1e-4 of its peak."""

import pytest

from support.omni_engine import OmniEngine, assert_same
from support.reference import chat, reference_of, sound, tiny_checkpoint
from tests.plugins.omni_qwen3_omni.parity_cases import CASES, VOICES


@pytest.fixture(scope="module")
def engine() -> OmniEngine:
    """Its models never stop by themselves, so that every case has its full length."""
    return OmniEngine(tiny_checkpoint(stop_gain=0.0, codec_stop_gain=0.0, voices=VOICES))


@pytest.mark.parametrize("case", CASES)
def test_parity_with_transformers(engine: OmniEngine, case: str) -> None:
    asked = CASES[case]
    answer = reference_of(tiny_checkpoint(stop_gain=0.0, codec_stop_gain=0.0, voices=VOICES)).answer(asked)
    assert len(answer.ids) == asked.sampling["thinker"].max_tokens
    if "audio" in asked.modalities:
        assert answer.codes.shape[1] + 1 == asked.sampling["talker"].max_tokens

    assert_same(engine.answer(asked), answer)


@pytest.mark.parametrize("voice", VOICES)
def test_parity_of_every_voice(engine: OmniEngine, voice: str) -> None:
    asked = chat("hello", sound(0.6, 13), voice=voice)
    answer = reference_of(tiny_checkpoint(stop_gain=0.0, codec_stop_gain=0.0, voices=VOICES)).answer(asked)

    assert_same(engine.answer(asked), answer)


def test_a_voice_is_found_whatever_its_case(engine: OmniEngine) -> None:
    lower, upper = engine.run([chat("hello", voice="aiden"), chat("hello", voice="AIDEN")])

    assert lower.frames == upper.frames


def test_text_comes_before_the_speech_is_over(engine: OmniEngine) -> None:
    """The talker starts while the thinker still writes."""
    log = engine.answer(chat("tell me more", max_text=40, max_codes=40)).log

    assert log.index("codes") < log.index("thinker")
    assert log.index("audio") < log.index("thinker")
