"""Tiny models of real families speak given texts, and transcribe sound, through the OpenAI SDK."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni import AsyncOmni, Omni, Result, SamplingParams
from omni.sampling import StructuredOutput
from omni_csm.tiny import write_tiny as write_csm
from omni_qwen2_5_omni.tiny import write_tiny as write_qwen2_5
from omni_text.tiny import write_tiny as write_text
from tests.omni.serve.http_server import STRICT, Served, served
from tests.support.reference import tiny_checkpoint
from tests.support.tiers import SLOW, few
from tests.support.tiny_omni import SHAPE, tiny_plugins

pytestmark = pytest.mark.thorough

TEXT = "Five boxing wizards: jump!"
TALKER: dict[str, Any] = {"talker": {"max_tokens": 9}}


def opened(folder: Path) -> AsyncOmni:
    return AsyncOmni(folder, device="cpu", plugins=tiny_plugins(), overrides=STRICT)


def spoken(it: Served, text: str, **fields: Any) -> np.ndarray:
    """16-bit samples at 24 kHz."""
    with it.client() as client:
        answer = client.audio.speech.create(
            model="tiny", voice=fields.pop("voice", "alloy"), input=text, response_format="pcm", extra_body=fields
        )
    return np.frombuffer(answer.content, "<i2")


def pcm(result: Result) -> np.ndarray:
    assert result.audio is not None
    assert result.sample_rate == 24000
    samples: np.ndarray = result.audio.numpy()
    rounded: np.ndarray = np.round(np.clip(samples, -1, 1) * 32767).astype(np.int16)
    return rounded


@pytest.fixture(scope="module")
def talking() -> Path:
    return tiny_checkpoint(3, max_positions=256, **SHAPE)


@pytest.fixture(scope="module")
def talker(talking: Path) -> Iterator[Served]:
    with served(opened(talking)) as it:
        yield it


@pytest.mark.parametrize("instructions", few(1, ["Whisper.", ""], SLOW))
def test_a_thinker_writes_the_text_and_its_talker_says_it(talker: Served, talking: Path, instructions: str) -> None:
    got = spoken(talker, TEXT, seed=1, sampling=TALKER, **({"instructions": instructions} if instructions else {}))
    asked = f"{instructions}\n\n" if instructions else ""
    message = f"{asked}Read this text aloud, word for word:\n\n{TEXT}"
    sampling = {
        "thinker": SamplingParams(seed=1, temperature=0.0, structured=StructuredOutput(choice=(TEXT,))),
        "talker": SamplingParams(max_tokens=9, seed=1),
    }
    with Omni(talking, device="cpu", plugins=tiny_plugins()) as omni:
        forced = omni.generate(message, voice=omni.voices[0], sampling=sampling, stream=False)
        free = omni.generate(
            message,
            voice=omni.voices[0],
            sampling={**sampling, "thinker": SamplingParams(seed=1, temperature=0.0, max_tokens=20)},
            stream=False,
        )
    assert forced.text == TEXT
    assert forced.finish_reasons["thinker"] == "stop"
    np.testing.assert_array_equal(got, pcm(forced))
    assert free.text != TEXT
    assert not np.array_equal(got, pcm(free))


def test_a_text_beyond_the_context_is_refused(talker: Served) -> None:
    for text, said in (("long " * 150, "longer than the model's context"), ("long " * 300, "tokens")):
        body = {"model": "tiny", "input": text, "sampling": {"talker": {"max_tokens": 120}}, "stream_format": "sse"}
        last = talker.post("/v1/audio/speech", json=body).text.split("data: ")[-1]
        error = json.loads(last)["error"]
        assert error["param"] == "input"
        assert said in error["message"]


def test_the_tokens_of_speech_are_counted(talker: Served) -> None:
    # A talker without a seed may end its speech before the limit.
    body = {"model": "tiny", "input": TEXT, "seed": 1, "sampling": TALKER, "stream_format": "sse"}
    last = talker.post("/v1/audio/speech", json=body).text.split("data: ")[-1]
    assert '"output_tokens":9' in last


def test_the_played_sound_is_the_models_text(talker: Served, talking: Path, sound: bytes) -> None:
    with talker.client() as client:
        answer = client.audio.transcriptions.create(
            model="tiny", file=("speech.wav", sound), extra_body={"max_tokens": 12}
        )
    ask = "Transcribe the speech. Answer with the words that are said, and nothing else."
    message = [
        {
            "role": "user",
            "content": [{"type": "input_audio", "input_audio": sound}, {"type": "text", "text": ask}],
        }
    ]
    with Omni(talking, device="cpu", plugins=tiny_plugins()) as omni:
        expected = omni.generate(
            message, modalities=("text",), sampling=SamplingParams(max_tokens=12, temperature=0.0), stream=False
        )
    assert answer.text == expected.text
    assert answer.text


def test_a_model_that_does_not_hear_refuses(tmp_path: Path, sound: bytes) -> None:
    write_text(tmp_path / "tiny", seed=1)
    with served(opened(tmp_path / "tiny")) as it:
        response = it.post("/v1/audio/transcriptions", data={"model": "tiny"}, files={"file": sound})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "file")
        assert "text only" in response.json()["error"]["message"]
        assert it.post("/v1/audio/speech", json={"model": "tiny", "input": TEXT}).json()["error"]["param"] == "model"
        assert it.get("/v1/audio/voices").json() == {"voices": []}


def test_csm_speaks_the_text_as_a_turn(tmp_path: Path) -> None:
    write_csm(tmp_path / "tiny", seed=1)
    with served(opened(tmp_path / "tiny")) as it:
        got = spoken(it, TEXT, voice="ash", seed=2, max_tokens=6)
        refused = it.post("/v1/audio/speech", json={"model": "tiny", "input": TEXT, "instructions": "Whisper."})
        heard = it.post("/v1/audio/transcriptions", data={"model": "tiny"}, files={"file": b"x"})
    with Omni(tmp_path / "tiny", device="cpu", plugins=tiny_plugins()) as omni:
        expected = omni.generate(TEXT, voice="1", sampling=SamplingParams(max_tokens=6, seed=2), stream=False)
    np.testing.assert_array_equal(got, pcm(expected))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "instructions")
    assert (heard.status_code, heard.json()["error"]["param"]) == (400, "model")


def test_qwen2_5_omni_speaks_the_text(tmp_path: Path) -> None:
    write_qwen2_5(tmp_path / "tiny", seed=1)
    sampling = {"talker": {"max_tokens": 12}}
    with served(opened(tmp_path / "tiny")) as it:
        first, again, other = (
            spoken(it, text, seed=1, sampling=sampling) for text in (TEXT, TEXT, TEXT.replace("jump", "hide"))
        )
    assert first.size
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_speech_that_a_limit_of_the_model_cuts_is_logged(
    talking: Path, talker: Served, caplog: pytest.LogCaptureFixture
) -> None:
    limits = {**STRICT, "talker.sampling.max_tokens": 5}
    with served(AsyncOmni(talking, device="cpu", plugins=tiny_plugins(), overrides=limits)) as it:
        spoken(it, TEXT, seed=1)  # some draws end before the limit
    assert "the speech ended at talker.sampling.max_tokens" in caplog.text
    caplog.clear()
    spoken(talker, TEXT, seed=1, sampling=TALKER)
    assert "the speech ended" not in caplog.text
