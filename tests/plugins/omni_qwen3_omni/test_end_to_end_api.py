"""Text, a picture and a recording in, text and speech out: the whole pipeline through the public interface."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from omni import Metrics, Omni, Result
from tests.support.tiny_omni import (
    ASSETS,
    assert_like,
    audio_of,
    lengths,
    text_of,
    user,
)

RATE = 24000
SAMPLES_PER_FRAME = 1920
LOOKAHEAD = 555
"""Samples at the end of a waveform that would need a frame more."""
ASKED: list[dict[str, Any]] = [
    {"role": "system", "content": "you are the blue voice"},
    *user(
        {"type": "image_url", "image_url": {"url": str(ASSETS / "shapes.png")}},
        {"type": "input_audio", "input_audio": str(ASSETS / "question.wav")},
        "what do you see, and what was said",
    ),
]
LENGTHS = lengths(16, 40)


@pytest.fixture(scope="module")
def whole(omni: Omni) -> Result:
    return omni.generate(ASKED, sampling=LENGTHS, stream=False)


def test_the_whole_result(whole: Result, tmp_path: Path) -> None:
    assert whole.text
    assert whole.audio is not None
    assert whole.audio.dtype == torch.float32
    assert whole.audio.shape == (40 * SAMPLES_PER_FRAME - LOOKAHEAD,)
    assert whole.sample_rate == RATE
    assert 0.01 < float(whole.audio.abs().max()) <= 1
    assert whole.usage.tokens == {"thinker": 16, "talker": 41}
    assert whole.finish_reasons == {
        "audio_encoder": "stop",
        "vision_encoder": "stop",
        "thinker": "length",
        "talker": "length",
        "code2wav": "stop",
    }
    whole.save(tmp_path / "answer.wav")
    samples, rate = soundfile.read(tmp_path / "answer.wav", dtype="float32")
    assert (rate, samples.shape) == (RATE, whole.audio.shape)
    np.testing.assert_allclose(samples, whole.audio.numpy(), atol=2**-14)


def test_pieces_add_up_to_the_whole(omni: Omni, whole: Result) -> None:
    outputs = list(omni.generate(ASKED, sampling=LENGTHS))
    assert text_of(outputs) == whole.text
    assert_like(audio_of(outputs), whole.audio)
    assert outputs[-1].usage == whole.usage
    assert outputs[-1].finish_reasons == whole.finish_reasons
    assert sum(output.audio is not None for output in outputs) >= 2
    kinds = ["sound" if output.audio is not None else "text" for output in outputs[:-1]]
    assert kinds != sorted(kinds, reverse=True), "it spoke only after it had written everything"


def test_metrics_are_sane(whole: Result) -> None:
    """As tests/omni/api/test_omni.py has them, and of each stage."""
    metrics: Metrics = whole.metrics
    assert metrics.rtf is not None
    assert metrics.audio_seconds == pytest.approx((40 * SAMPLES_PER_FRAME - LOOKAHEAD) / RATE)
    assert set(metrics.stages) == {"audio_encoder", "vision_encoder", "thinker", "talker", "code2wav"}
    for stage, tokens in (("thinker", 16), ("talker", 41)):
        done = metrics.stages[stage]
        assert done.counts["tokens"] == tokens
        assert done.tokens_per_second == pytest.approx(tokens / done.seconds)
        assert 0 < done.seconds < metrics.total
    assert metrics.stages["thinker"].counts["prompt_tokens"] == whole.usage.prompt_tokens
    assert metrics.stages["code2wav"].counts["frames"] == 40
    assert metrics.stages["code2wav"].tokens_per_second is None
