"""Text, a picture and a recording in, text and speech out: the whole pipeline through the public interface."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from omni import Metrics, Omni, Output, Result, SamplingParams
from tests.support.reference import chat, reference_of, says, tiny_checkpoint
from tests.support.tiny_omni import (
    ASSETS,
    SHAPE,
    assert_like,
    audio_of,
    lengths,
    picture,
    sound,
    text_of,
    tiny_plugins,
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


def test_the_text_is_transformers_text() -> None:
    folder = tiny_checkpoint(3, **SHAPE)
    question = "how many of them were there"
    ids = reference_of(folder).answer(chat(says("user", question), voice=None, max_text=20)).ids
    expected = reference_of(folder).processor.tokenizer.decode(ids, skip_special_tokens=True)
    with Omni(folder, device="cpu", plugins=tiny_plugins()) as omni:
        greedy = SamplingParams(temperature=0.0, max_tokens=20)
        assert omni.generate(question, modalities=("text",), sampling=greedy, stream=False).text == expected


@pytest.mark.parametrize("role", ["the picture", "the sound", "the system prompt", "the question"])
def test_every_part_of_the_request_matters(omni: Omni, whole: Result, role: str) -> None:
    system, (*media, text) = ASKED[0], ASKED[1]["content"]
    other = {
        "the picture": [system, {"role": "user", "content": [picture(1, 256, 384), media[1], text]}],
        "the sound": [system, {"role": "user", "content": [media[0], sound(1, 5.0), text]}],
        "the system prompt": [{"role": "system", "content": "you are the red number"}, ASKED[1]],
        "the question": [system, {"role": "user", "content": [*media, {"type": "text", "text": "who is it"}]}],
    }[role]
    assert omni.generate(other, sampling=LENGTHS, stream=False).text != whole.text


def test_text_alone_runs_neither_talker_nor_vocoder(omni: Omni, whole: Result) -> None:
    seen: dict[str, int] = defaultdict(int)
    stream = omni.generate(ASKED, modalities=("text",), sampling=LENGTHS)
    outputs: list[Output] = []
    for output in stream:
        outputs.append(output)
        for stage, counts in omni.usage().items():
            seen[stage] = max(seen[stage], counts["requests"])
    assert text_of(outputs) == whole.text
    assert all(output.audio is None for output in outputs)
    assert (seen["thinker"], seen["talker"], seen["code2wav"]) == (1, 0, 0)
    assert set(outputs[-1].finish_reasons) == {"audio_encoder", "vision_encoder", "thinker"}


def test_speech_alone(omni: Omni, whole: Result) -> None:
    result = omni.generate(ASKED, modalities=("audio",), sampling=LENGTHS, stream=False)
    assert result.text == ""
    assert result.audio is not None
    assert whole.audio is not None
    assert_like(result.audio, whole.audio)


def test_a_list_comes_back_in_order(omni: Omni) -> None:
    requests: list[Any] = ["who is it", user(picture(2), "what is it"), user(sound(3)), "who is it"]
    sampling = lengths(6, 8)
    alone = [omni.generate(request, sampling=sampling, stream=False) for request in requests]
    together = omni.generate(requests, sampling=sampling, stream=False)
    for result, expected in zip(together, alone, strict=True):
        assert (result.error, result.text, result.usage) == (None, expected.text, expected.usage)
        assert_like(result.audio, expected.audio)
    assert len({result.text for result in together[:3]}) == 3
    pieces: dict[int, list[Output]] = defaultdict(list)
    for output in omni.generate(requests, sampling=sampling):
        pieces[output.index].append(output)
    assert [text_of(pieces[index]) for index in range(4)] == [result.text for result in alone]
    for index in range(4):
        assert_like(audio_of(pieces[index]), alone[index].audio)


def test_seeds_reproduce(omni: Omni) -> None:
    def answer(seed: int) -> tuple[str, torch.Tensor]:
        sampling = lengths(12, 12, seed=seed, temperature=1.0, top_p=0.95)
        result = omni.generate("go on", sampling=sampling, stream=False)
        assert result.audio is not None
        return result.text, result.audio

    first, second, third = answer(1), answer(2), answer(1)
    assert first[0] == third[0]
    assert_like(first[1], third[1])
    assert first[0] != second[0]
    assert not torch.equal(first[1], second[1])


def test_without_a_seed_every_answer_is_another(omni: Omni) -> None:
    sampling = SamplingParams(temperature=1.0, max_tokens=20)
    texts = {omni.generate("go on", modalities=("text",), sampling=sampling, stream=False).text for _ in range(3)}
    assert len(texts) == 3


def test_voices_sound_different(omni: Omni) -> None:
    waves = [omni.generate("go on", voice=v, sampling=lengths(8, 8), stream=False).audio for v in omni.voices]
    default = omni.generate("go on", sampling=lengths(8, 8), stream=False).audio
    assert len(waves) == 3
    first, second, third = (wave for wave in waves if wave is not None)
    assert default is not None
    assert_like(first, default)
    assert not any(torch.equal(one, other) for one, other in ((first, second), (second, third), (first, third)))


def test_metrics_are_sane(omni: Omni) -> None:
    result = omni.generate(ASKED, sampling=LENGTHS, stream=False)
    metrics: Metrics = result.metrics
    assert metrics.queued is not None
    assert metrics.prepare is not None
    assert metrics.ttft is not None
    assert metrics.first_audio is not None
    assert metrics.rtf is not None
    assert metrics.queued >= 0
    assert metrics.prepare > 0
    assert metrics.queued + metrics.prepare < metrics.ttft < metrics.first_audio < metrics.total < 60
    assert metrics.audio_seconds == pytest.approx((40 * SAMPLES_PER_FRAME - LOOKAHEAD) / RATE)
    assert metrics.first_audio < metrics.rtf * metrics.audio_seconds <= metrics.total
    assert set(metrics.stages) == {"audio_encoder", "vision_encoder", "thinker", "talker", "code2wav"}
    for stage, tokens in (("thinker", 16), ("talker", 41)):
        done = metrics.stages[stage]
        assert done.counts["tokens"] == tokens
        assert done.tokens_per_second == pytest.approx(tokens / done.seconds)
        assert 0 < done.seconds < metrics.total
    assert metrics.stages["thinker"].counts["prompt_tokens"] == result.usage.prompt_tokens
    assert metrics.stages["code2wav"].counts["frames"] == 40
    assert metrics.stages["code2wav"].tokens_per_second is None


def test_a_conversation(omni: Omni) -> None:
    """An earlier answer is part of the next question."""
    question = {"role": "user", "content": "who said it"}
    answers: list[list[dict[str, Any]]] = [
        [question, {"role": "assistant", "content": said}, {"role": "user", "content": [picture(), sound()]}]
        for said in ("the blue voice", "a red circle")
    ]
    texts = {omni.generate(turns, sampling=lengths(10, 3), stream=False).text for turns in answers}
    assert len(texts) == 2
