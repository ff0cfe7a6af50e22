"""The tiny models are worth comparing: each part of a request, and every conditioning token, changes the outputs."""

import pytest

from omni.frontend.base import Chat
from tests.support.omni_engine import OmniEngine
from tests.support.reference import chat, picture, reference_of, says, sound, tiny_checkpoint


@pytest.fixture(scope="module")
def engine() -> OmniEngine:
    return OmniEngine(tiny_checkpoint(61, stop_gain=0.0, codec_stop_gain=0.0))


VARIANTS: dict[str, tuple[Chat, Chat]] = {
    "text": (chat("hello world"), chat("hello people")),
    "picture": (chat("what", picture(64, 64, 1)), chat("what", picture(64, 64, 2))),
    "picture's size": (chat("what", picture(64, 96, 1)), chat("what", picture(96, 64, 1))),
    "sound": (chat("what", sound(0.7, 1)), chat("what", sound(0.7, 2))),
    "order": (chat(picture(64, 64, 1), sound(0.7, 1)), chat(sound(0.7, 1), picture(64, 64, 1))),
    "system prompt": (chat(says("system", "be kind"), says("user", "hello")), chat("hello")),
    "earlier turn": (
        chat(says("user", "hello"), says("assistant", "one"), says("user", "go on")),
        chat(says("user", "hello"), says("assistant", "two"), says("user", "go on")),
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_answer_depends_on_each_part_of_the_request(engine: OmniEngine, variant: str) -> None:
    one, other = engine.run(VARIANTS[variant])

    assert one.ids != other.ids
    assert one.frames != other.frames
    assert one.wave.shape == other.wave.shape
    assert (one.wave != other.wave).any()


def test_text_and_codes_vary_and_sound_is_audible_and_not_clipped() -> None:
    folder = tiny_checkpoint(stop_gain=0.0, codec_stop_gain=0.0)
    plain = reference_of(folder).generate(chat("hello world, what is it?", max_text=30, max_codes=31))
    assert len(plain.ids) == 30
    assert len(set(plain.ids)) >= 12
    assert plain.codes.shape == (4, 30)
    assert all(len(set(group.tolist())) >= 10 for group in plain.codes)
    assert all((a != b).float().mean() > 0.8 for i, a in enumerate(plain.codes) for b in plain.codes[:i])
    assert 0.2 < abs(plain.wave).max() < 0.8
    assert plain.wave.std() > 0.02


def test_the_codes_change_with_the_voice_and_the_text_does_not(engine: OmniEngine) -> None:
    answers = engine.run([chat("hello", voice=voice) for voice in ("ethan", "chelsie", "aiden")])

    assert len({tuple(answer.ids) for answer in answers}) == 1
    assert len({tuple(answer.frames) for answer in answers}) == 3
