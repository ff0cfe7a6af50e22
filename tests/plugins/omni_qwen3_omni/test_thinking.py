"""The Thinking layout: no talker, no vocoder."""

import pytest

from omni.errors import InputError
from tests.support.omni_engine import OmniEngine, assert_parity
from tests.support.reference import chat, picture, says, sound, tiny_checkpoint


@pytest.fixture(scope="module")
def engine() -> OmniEngine:
    return OmniEngine(tiny_checkpoint(31, talker=False))


def test_parity_of_a_model_that_only_writes(engine: OmniEngine) -> None:
    chats = [
        chat("hello world", voice=None, max_text=30),
        chat(picture(64, 96, 1), sound(0.7, 1), "what is it", voice=None, max_text=20),
        chat(says("system", "think first"), says("user", "how many", picture(32, 32, 2)), voice=None, max_text=12),
    ]

    for result in assert_parity(engine, chats, [0, 3, 4]):
        assert set(result.stages) <= {"thinker", "audio_encoder", "vision_encoder"}


def test_its_front_end_has_no_voices_and_refuses_audio(engine: OmniEngine) -> None:
    assert engine.frontend.voices == ()
    with pytest.raises(InputError, match=r"^modalities: ask for audio, .*no talker; ask for \"text\" only"):
        engine.request(chat("hello", voice="ethan"))
