"""An exception in one request's media, or on its way between stages, fails that request alone."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from transformers import Qwen2VLImageProcessorPil, WhisperFeatureExtractor

from omni import Omni, OmniError, Result, StageError
from omni_qwen3_omni.encoders import AudioEncoder, VisionEncoder
from tests.support.reference import tiny_checkpoint
from tests.support.tiny_omni import (
    SHAPE,
    assert_freed,
    assert_like,
    lengths,
    picture,
    sound,
    tiny_plugins,
    user,
)

LENGTHS = lengths(8, 12)
SILENCE = {"type": "input_audio", "input_audio": np.zeros(8000, np.float32)}
BLACK = {"type": "image_url", "image_url": np.zeros((56, 84, 3), np.uint8)}
GOOD: list[list[dict[str, Any]]] = [
    user(sound(1), "who is it"),
    user(picture(1), "what is it"),
    user(picture(2), sound(2), "how many"),
    user("go on"),
]
BAD = user(SILENCE, BLACK, "what is wrong")


@pytest.fixture(scope="module")
def omni() -> Iterator[Omni]:
    caches = {"audio_encoder.cache_bytes": 0, "vision_encoder.cache_bytes": 0}
    with Omni(tiny_checkpoint(3, **SHAPE), device="cpu", plugins=tiny_plugins(), overrides=caches) as omni:
        yield omni


@pytest.fixture(scope="module")
def alone(omni: Omni) -> list[Result]:
    return [omni.generate(chat, sampling=LENGTHS, stream=False) for chat in GOOD]


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes a method raise for the arguments that a predicate picks out."""

    def spoil(owner: type, method: str, picked: Callable[..., bool]) -> None:
        real = getattr(owner, method)

        def spoilt(*arguments: Any, **named: Any) -> Any:
            if picked(*arguments, **named):
                raise ValueError("it is spoilt")
            return real(*arguments, **named)

        monkeypatch.setattr(owner, method, spoilt)

    return spoil


def error_of_the_bad_one(omni: Omni, alone: list[Result]) -> OmniError:
    """The bad request's error; those around it, of the same call, give what they give alone."""
    requests = [*GOOD[:2], BAD, *GOOD[2:]]
    results = omni.generate(requests, sampling=LENGTHS, stream=False)
    bad = results.pop(2)
    for result, expected in zip(results, alone, strict=True):
        assert result.error is None
        assert (result.text, result.usage, result.finish_reasons) == (
            expected.text,
            expected.usage,
            expected.finish_reasons,
        )
        assert_like(result.audio, expected.audio)
    assert_freed(omni)
    assert bad.error is not None
    return bad.error


def test_the_bad_request_is_good_unless_it_is_spoilt(omni: Omni) -> None:
    assert omni.generate(BAD, sampling=LENGTHS, stream=False).usage.tokens == {"thinker": 8, "talker": 13}


@pytest.mark.parametrize(
    ("owner", "method", "picked"),
    [
        (WhisperFeatureExtractor, "__call__", lambda _, sounds, *rest, **named: not np.any(sounds[0])),
        (Qwen2VLImageProcessorPil, "__call__", lambda _, images, *rest, **named: not np.any(np.asarray(images[0]))),
    ],
)
def test_feature_extraction(
    omni: Omni, alone: list[Result], spoil: Callable[..., None], owner: type, method: str, picked: Callable[..., bool]
) -> None:
    spoil(owner, method, picked)
    error = error_of_the_bad_one(omni, alone)
    assert str(error) == "stage 'frontend' failed while preparing the request: ValueError: it is spoilt"
    assert isinstance(error.__cause__, ValueError)


def is_silent(_: object, inputs: Any, segments: Any) -> bool:
    """Whether a chunk of the batch is: told by its lowest frequency."""
    chunks = inputs["chunks"].tolist()
    return any(float(inputs["features"][start : start + frames].std()) == 0 for start, _, frames in chunks)


def is_black(_: object, inputs: Any, segments: Any) -> bool:
    return any(float(part.std(0).max()) == 0 for part in inputs["pixels"].split(segments))


@pytest.mark.plants_faults
@pytest.mark.parametrize(
    ("model", "picked", "stage"),
    [(AudioEncoder, is_silent, "audio_encoder"), (VisionEncoder, is_black, "vision_encoder")],
)
def test_an_encoder(
    omni: Omni, alone: list[Result], spoil: Callable[..., None], model: type, picked: Callable[..., bool], stage: str
) -> None:
    """Also where the bad item shares a batch with good ones: their sizes are the same."""
    spoil(model, "encode", picked)
    error = error_of_the_bad_one(omni, alone)
    assert isinstance(error, StageError)
    assert error.stage == stage
    assert error.doing.startswith("encoding its media")
    assert "ValueError: it is spoilt" in error.problem
