"""`omni run` on a tiny Qwen3-Omni."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import soundfile
from typer.testing import CliRunner, Result

from omni import Omni, SamplingParams
from omni.cli import app
from tests.omni.cli.echo_program import environment, program
from tests.support.entry_points import own_entry_points
from tests.support.patience import PATIENCE_SECONDS
from tests.support.reference import tiny_checkpoint
from tests.support.tiny_omni import ASSETS, SHAPE, tiny_plugins, user

PICTURE, RECORDING = str(ASSETS / "shapes.png"), str(ASSETS / "question.wav")
SHORT = ("--max-tokens", "12", "--set", "talker.sampling.max_tokens=21", "--seed", "5", "--device", "cpu")
REPORT = (
    r"wrote {out}\n"
    r"TTFT \d+\.\d{{3}} s \| first audio \d+\.\d{{3}} s \| audio {seconds} s \| RTF \d+\.\d{{3}} \| total \d+\.\d{{3}} s\n"
    r"thinker: 12 tokens, \d+\.\d tokens/s\n"
    r"talker: 21 tokens, \d+\.\d tokens/s\n"
)


@pytest.fixture(scope="module")
def model() -> str:
    return str(tiny_checkpoint(3, **SHAPE))


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
    monkeypatch.setattr("omni.plugin.manager.entry_points", lambda group: own_entry_points())
    return CliRunner().invoke(app, ["run", *arguments, "--device", "cpu"])


def test_the_text_goes_to_stdout_and_all_else_to_stderr(model: str, tmp_path: Path) -> None:
    out = tmp_path / "answer.wav"
    question: list[str | dict[str, Any]] = [
        {"type": "image_url", "image_url": PICTURE},
        {"type": "input_audio", "input_audio": RECORDING},
        "what do you see",
    ]
    arguments = [model, "what do you see", "--image", PICTURE, "--audio", RECORDING, "--out", str(out), *SHORT]
    # One thread, as the tests have: sums in another order differ in their last bits.
    settings = {**environment(), "PYTHONWARNINGS": "error", "OMP_NUM_THREADS": "1"}
    command, limit = [*program(), "run", *arguments], PATIENCE_SECONDS
    ran = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False, env=settings)
    sampling = {"thinker": SamplingParams(max_tokens=12, seed=5), "talker": SamplingParams(max_tokens=21, seed=5)}
    with Omni(model, device="cpu", plugins=tiny_plugins()) as omni:
        expected = omni.generate(user(*question), sampling=sampling, stream=False)
    assert (ran.returncode, ran.stdout) == (0, expected.text + "\n"), ran.stderr
    assert expected.audio is not None
    seconds = re.escape(f"{len(expected.audio) / 24000:.2f}")
    assert re.fullmatch(REPORT.format(out=re.escape(str(out)), seconds=seconds), ran.stderr), ran.stderr
    samples, rate = soundfile.read(out, dtype="float32")
    assert rate == expected.sample_rate
    assert abs(samples - expected.audio.numpy()).max() <= 2**-14


def test_without_speech_no_file_is_written(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "a.wav"
    result = call(monkeypatch, model, "go on", "--out", str(out), "--max-tokens", "1")
    assert result.exit_code == 0
    assert f"the model produced no audio: {out} was not written" in result.stderr
    assert not out.exists()
