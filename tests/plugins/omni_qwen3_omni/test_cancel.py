"""Requests that their users give up, through the public interface, while others go on."""

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from omni import Omni
from omni_ar.layers.codec_talker import CodecTalker
from omni_ar.layers.deepstack import DeepstackModel
from omni_encoder.towers.picture_encoder import PictureEncoder
from omni_vocoder.streaming import StreamingVocoder
from tests.support.tiny_omni import (
    Bystander,
    assert_freed,
    assert_like,
    audio_of,
    lengths,
    picture,
    sound,
    text_of,
    user,
)

UNSEEN = itertools.count(100)
VICTIM = user(picture(1), sound(1), "what is it")
LONG = lengths(60, 80)
ENDLESS = lengths(10**6, 10**6)


@pytest.fixture(scope="module")
def bystander(omni: Omni) -> Bystander:
    return Bystander.of(omni)


def beside(omni: Omni, bystander: Bystander, act: Callable[[], None]) -> None:
    """Runs `act` after the bystander began; that one then gives what it gives alone, up to the order of sums."""
    stream = omni.generate(list(bystander.messages), sampling=bystander.sampling)
    first = next(stream)
    act()
    outputs = [first, *stream]
    assert text_of(outputs) == bystander.text
    assert_like(audio_of(outputs), bystander.audio)
    assert_freed(omni)


@pytest.mark.parametrize(
    ("model", "method", "stage", "what", "count"),
    [
        (PictureEncoder, "encode", "vision_encoder", "items", 1),
        (DeepstackModel, "forward", "thinker", "rows", 2),
        (CodecTalker, "forward", "talker", "rows", 2),
        (StreamingVocoder, "decode", "code2wav", "rows", 2),
    ],
)
def test_closing_in_the_middle_of_a_step(
    omni: Omni,
    bystander: Bystander,
    monkeypatch: pytest.MonkeyPatch,
    model: type,
    method: str,
    stage: str,
    what: str,
    count: int,
) -> None:
    """The engine's thread is inside a model, with a batch of which the request is part."""
    inside, gate, real = threading.Event(), threading.Event(), vars(model)[method]

    def slow(*arguments: Any, **named: Any) -> Any:
        if omni.usage()[stage][what] >= count:
            inside.set()
            assert gate.wait(10)
        return real(*arguments, **named)

    def act() -> None:
        monkeypatch.setattr(model, method, slow)
        # One that no other case has shown: encoders keep what they have encoded.
        stream = omni.generate(user(picture(next(UNSEEN)), "what is it"), sampling=ENDLESS)
        assert inside.wait(10)
        stream.close()
        gate.set()

    beside(omni, bystander, act)
