"""`omni run` on a tiny Qwen3-Omni."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import soundfile
from typer.testing import CliRunner, Result

from omni import Omni, SamplingParams
from omni.cli import app
from tests.support.entry_points import REPOSITORY, own_entry_points
from tests.support.patience import PATIENCE_SECONDS
from tests.support.reference import tiny_checkpoint
from tests.support.tiny_omni import ASSETS, SHAPE, tiny_plugins, user

PICTURE, RECORDING = str(ASSETS / "shapes.png"), str(ASSETS / "question.wav")
SHORT = ("--max-tokens", "12", "--set", "talker.sampling.max_tokens=21", "--seed", "5", "--device", "cpu")
ROOTS = [str(REPOSITORY / root) for root in ("", "plugins", "connectors", "stages")]
PROGRAM = """
from omni.plugin import manager
from tests.support.entry_points import own_entry_points
manager.entry_points = lambda group: own_entry_points()
from omni.cli import main
main()
"""
"""The console entry point, with this repository's plugins whether or not they are installed."""

REPORT = (
    r"wrote {out}\n"
    r"TTFT \d+\.\d{{3}} s \| first audio \d+\.\d{{3}} s \| audio {seconds} s \| RTF \d+\.\d{{3}} \| total \d+\.\d{{3}} s\n"
    r"thinker: 12 tokens, \d+\.\d tokens/s\n"
    r"talker: 21 tokens, \d+\.\d tokens/s\n"
)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni.plugin.manager.entry_points", lambda group: own_entry_points())


@pytest.fixture(scope="module")
def model() -> str:
    return str(tiny_checkpoint(3, **SHAPE))


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["run", *arguments])


def refused(*arguments: str) -> str:
    """The one line of a command that fails."""
    result = call(*arguments, "--device", "cpu")
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def test_the_text_goes_to_stdout_and_all_else_to_stderr(model: str, tmp_path: Path) -> None:
    out = tmp_path / "answer.wav"
    arguments = [model, "what do you see", "--image", PICTURE, "--audio", RECORDING, "--out", str(out), *SHORT]
    # One thread, as the tests have: sums in another order differ in their last bits.
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(ROOTS),
        "PYTHONWARNINGS": "error",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", PROGRAM, "run", *arguments]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False, env=environment
    )

    content: list[str | dict[str, Any]] = [
        {"type": "image_url", "image_url": PICTURE},
        {"type": "input_audio", "input_audio": RECORDING},
        "what do you see",
    ]
    sampling = {"thinker": SamplingParams(max_tokens=12, seed=5), "talker": SamplingParams(max_tokens=21, seed=5)}
    with Omni(model, device="cpu", plugins=tiny_plugins()) as omni:
        expected = omni.generate(user(*content), sampling=sampling, stream=False)
    assert (ran.returncode, ran.stdout) == (0, expected.text + "\n")
    assert expected.audio is not None
    seconds = re.escape(f"{len(expected.audio) / 24000:.2f}")
    assert re.fullmatch(REPORT.format(out=re.escape(str(out)), seconds=seconds), ran.stderr), ran.stderr
    samples, rate = soundfile.read(out, dtype="float32")
    assert rate == expected.sample_rate
    assert abs(samples - expected.audio.numpy()).max() <= 2**-14


def test_a_model_that_has_nothing_to_say(model: str, tmp_path: Path) -> None:
    out = tmp_path / "a.wav"
    result = call(model, "go on", "--out", str(out), "--max-tokens", "1", "--device", "cpu")
    assert result.exit_code == 0
    assert f"the model spoke nothing: {out} was not written" in result.stderr
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([" "], "error: messages: hold no text, sound or picture; give the model something to answer"),
        (["hi", "--image", RECORDING], "content[0].image_url: is not a picture that can be read"),
        (["hi", "--audio", PICTURE], "content[0].input_audio: is not a sound file that can be read"),
        (["the " * 5000], "error: prompt: has 5011 tokens, and thinker takes 4096"),
        (["hi", "--set", "thinker.num_blocks=1"], "error: thinker.num_blocks: 1 hold 16 tokens, and a request that"),
        (["hi", "--dtype", "int3"], "error: dtype: 'int3' is not supported; use one of float32"),
    ],
)
def test_what_is_wrong_is_one_line(model: str, arguments: list[str], words: str) -> None:
    assert words in refused(model, *arguments)
