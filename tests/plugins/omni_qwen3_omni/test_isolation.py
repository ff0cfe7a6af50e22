"""An exception in one request's media, or on its way between stages, fails that request alone."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from transformers import Qwen2VLImageProcessorPil, WhisperFeatureExtractor

from omni import Omni, OmniError, Result, StageError
from omni.checkpoint import Checkpoint
from omni.frontend.base import Chat
from omni.frontend.messages import parse_messages
from omni_ar.layers.deepstack import DeepstackModel
from omni_ar.text_conditioning import TextConditioning, TextConditioningArgs
from omni_qwen3_omni.encoders import AudioEncoder, VisionEncoder
from omni_qwen3_omni.frontend import build as build_frontend
from tests.support.reference import tiny_checkpoint
from tests.support.tiny_omni import (
    SHAPE,
    assert_freed,
    assert_like,
    lengths,
    picture,
    sound,
    text_of,
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


@pytest.fixture
def is_bad(omni: Omni) -> Callable[..., bool]:
    """Whether an adapter is the bad request's, told by the talker's prompt."""
    chat = Chat(parse_messages(BAD), frozenset(omni.modalities), None, LENGTHS)
    args = build_frontend(Checkpoint(tiny_checkpoint(3, **SHAPE))).prepare(chat).edges["thinker->talker"]
    assert isinstance(args, TextConditioningArgs)
    columns = args.prompt.columns
    return lambda adapter, *given: np.array_equal(adapter._args.prompt.columns, columns)


@pytest.mark.parametrize("method", ["push", "finish"])
def test_an_adapter(
    omni: Omni, alone: list[Result], spoil: Callable[..., None], is_bad: Callable[..., bool], method: str
) -> None:
    spoil(TextConditioning, method, is_bad)
    error = error_of_the_bad_one(omni, alone)
    problem = "stage 'thinker->talker' failed while adapting a payload: ValueError: it is spoilt"
    assert str(error) == problem


def test_an_adapter_that_fails_midway(
    omni: Omni, alone: list[Result], spoil: Callable[..., None], is_bad: Callable[..., bool]
) -> None:
    """Text that was given before stays given."""
    spoil(TextConditioning, "push", lambda adapter, *given: is_bad(adapter) and len(adapter._ids) == 5)
    expected = omni.generate(BAD, sampling=LENGTHS, modalities=("text",), stream=False).text
    outputs = list(omni.generate([BAD], sampling=LENGTHS))
    assert "it is spoilt" in str(outputs[-1].error)
    assert text_of(outputs)
    assert expected.startswith(text_of(outputs))
    assert_freed(omni)
    error_of_the_bad_one(omni, alone)


def test_an_adapter_that_cannot_be_made(
    omni: Omni, alone: list[Result], monkeypatch: pytest.MonkeyPatch, is_bad: Callable[..., bool]
) -> None:
    real = TextConditioning.__init__

    def spoilt(self: TextConditioning, args: Any) -> None:
        real(self, args)
        if is_bad(self):
            raise ValueError("it is spoilt")

    monkeypatch.setattr(TextConditioning, "__init__", spoilt)
    error = error_of_the_bad_one(omni, alone)
    assert "'thinker->talker' failed while opening its adapter: ValueError: it is spoilt" in str(error)


def test_a_step_that_fails_takes_its_batch_and_no_more(
    omni: Omni, alone: list[Result], spoil: Callable[..., None]
) -> None:
    """Nobody can tell whose fault a step is; but the stage, and what comes later, go on."""
    left = [1]

    def once(*arguments: Any) -> bool:
        return bool(left and left.pop())

    spoil(DeepstackModel, "forward", once)
    with pytest.raises(StageError, match=r"'thinker' failed while running a step.*ValueError: it is spoilt"):
        omni.generate(GOOD[0], sampling=LENGTHS, stream=False)
    assert_freed(omni)
    later = omni.generate(GOOD[0], sampling=LENGTHS, stream=False)
    assert later.text == alone[0].text
    assert_like(later.audio, alone[0].audio)
