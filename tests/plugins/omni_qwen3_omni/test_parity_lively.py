"""The tiny models are worth comparing: whatever a request holds, and every conditioning token, changes what comes out."""

from collections.abc import Sequence

import msgspec
import pytest

from omni.frontend.base import Chat
from omni.payload import Payload
from omni_ar.inputs import Prompt, StepInputs
from omni_ar.text_conditioning import TextConditioning
from tests.support.omni_engine import OmniEngine, Result
from tests.support.reference import chat, picture, reference_of, says, sound, tiny_checkpoint

OTHER = 300
"""A text id that the tests put in place of another."""


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
def test_the_answer_changes_with(engine: OmniEngine, variant: str) -> None:
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


@pytest.mark.parametrize("index", range(6))
def test_every_conditioning_token_is_heard_from_its_own_frame_on(
    engine: OmniEngine, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text token k is first heard in frame k. The last of six is `tts_eos`."""
    asked = chat("hello", max_text=6, max_codes=20)
    expected = engine.answer(asked)

    _replace_token(monkeypatch, index)
    changed = engine.answer(asked)

    assert changed.ids == expected.ids
    assert _first_difference(changed, expected) == index


def test_the_pads_after_the_text_are_heard(engine: OmniEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = chat("hello", max_text=6, max_codes=20)
    expected = engine.answer(asked)
    finish = TextConditioning.finish

    def other_pad(self: TextConditioning, reason: str) -> Sequence[Payload]:
        (payload,) = finish(self, reason)
        assert isinstance(payload.meta, StepInputs)
        return (Payload(msgspec.structs.replace(payload.meta, pad=payload.meta.columns[:, 0] * 0 + OTHER)),)

    monkeypatch.setattr(TextConditioning, "finish", other_pad)

    assert _first_difference(engine.answer(asked), expected) == 6


def _replace_token(patch: pytest.MonkeyPatch, index: int) -> None:
    """Puts another text token in the place of the talker's token `index`, g0 being 0."""
    push, finish = TextConditioning.push, TextConditioning.finish
    seen = 0

    def replaced(payloads: Sequence[Payload]) -> list[Payload]:
        nonlocal seen
        out = []
        for payload in payloads:
            match payload.meta:
                case Prompt() as meta:
                    columns, at, seen = meta.columns.copy(), meta.length - 1, 1
                    chosen = index == 0
                case StepInputs() as meta:
                    columns, at = meta.columns.copy(), index - seen
                    chosen = 0 <= at < columns.shape[1]
                    seen += columns.shape[1]
                case other:
                    raise TypeError(type(other))
            if chosen:
                columns[0, at] = OTHER
            out.append(Payload(msgspec.structs.replace(meta, columns=columns)))
        return out

    patch.setattr(TextConditioning, "push", lambda self, payload: replaced(push(self, payload)))
    patch.setattr(TextConditioning, "finish", lambda self, reason: replaced(finish(self, reason)))


def _first_difference(one: Result, other: Result) -> int:
    return next(i for i, (a, b) in enumerate(zip(one.frames, other.frames, strict=True)) if a != b)
