"""Each script in examples/, run as a user would, on a tiny checkpoint."""

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import soundfile

from omni import Omni
from omni.timeline.read import read_trace
from omni.timeline.report import make_report
from tests.support.entry_points import REPOSITORY, own_entry_points
from tests.support.reference import tiny_checkpoint
from tests.support.tiny_omni import SHAPE, engine_threads, tiny_plugins

EXAMPLES = REPOSITORY / "examples"
Run = Callable[..., str]


@pytest.fixture(scope="module")
def model() -> Path:
    """Its context is short, so that it ends soon though it never stops by itself."""
    return tiny_checkpoint(3, max_positions=192, **SHAPE)


@pytest.fixture
def run(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a script in an empty folder. Returns its output."""

    def run(script: str, *arguments: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        monkeypatch.setattr("omni.plugin.manager.entry_points", lambda group: own_entry_points())
        monkeypatch.setattr(sys, "argv", [script, str(model), *arguments])
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
        printed = capsys.readouterr()
        assert printed.err == ""
        assert engine_threads() == 0
        return printed.out

    return run


def test_every_script_is_tested() -> None:
    tested = re.findall(r'run\("(\w+\.py)"', Path(__file__).read_text())
    assert set(tested) == {path.name for path in EXAMPLES.glob("*.py")}


def test_generate_prints_text_and_writes_speech(run: Run, tmp_path: Path) -> None:
    *text, times, wrote = run("generate.py", "--voice", "aiden").splitlines()
    assert len(" ".join(text).split()) > 10
    assert re.fullmatch(r"\d+\.\d s of speech in \d+\.\d s", times)
    assert wrote == "wrote answer.wav"
    info = soundfile.info(str(tmp_path / "answer.wav"))
    assert (info.samplerate, info.channels) == (24000, 1)
    assert f"{info.duration:.1f} s of speech" in times


def test_many_requests_answers_each_or_says_why_not(run: Run, tmp_path: Path) -> None:
    printed = run("many_requests.py", "--folder", "spoken/answers")
    answers = dict(re.findall(r"^(\d): (.+)$", printed, re.MULTILINE))
    assert set(answers) == {"0", "1", "2", "3"}
    assert answers["3"].startswith("messages: hold no text, sound or picture")
    assert printed.endswith("the story was given up: True\n")
    waves = {path.name: path.read_bytes() for path in (tmp_path / "spoken" / "answers").iterdir()}
    assert set(waves) == {"0.wav", "1.wav", "2.wav"}
    assert len(set(waves.values())) == 3


def test_text_only_prints_the_texts_of_single_requests(run: Run, model: Path) -> None:
    printed = run("text_only.py")
    script = runpy.run_path(str(EXAMPLES / "text_only.py"))
    expected = ""
    with Omni(model, device="cpu", plugins=tiny_plugins()) as omni:
        for number, request in enumerate(script["REQUESTS"]):
            alone = omni.generate(request, modalities=("text",), sampling=script["SAMPLING"], stream=False)
            expected += f"{number}: {alone.text.strip()}\n"
            expected += f"   {alone.usage.prompt_tokens} tokens in, 64 out, thinker: length\n"
    assert printed == expected


def test_sampling_prints_samples_and_structured_output(run: Run) -> None:
    shape, *lines = run("sampling.py").splitlines()
    assert re.fullmatch(r"a (red|green|blue) shape with \d sides", shape)
    answers, tokens = lines[:3], lines[3:]
    assert [answer[:2] for answer in answers] == ["0:", "1:", "2:"]
    assert len({answer[2:] for answer in answers}) == 3
    assert not any("." in answer.partition("(")[0] for answer in answers)
    assert 1 <= len(tokens) <= 4
    assert all(
        re.fullmatch(r"id \d+ had [\d.]+%; likeliest: \d+ with [\d.]+%, \d+ with [\d.]+%", line) for line in tokens
    )


@pytest.mark.slow
def test_two_ranks_prints_the_report_of_its_timeline(run: Run, tmp_path: Path) -> None:
    printed = run("two_ranks.py")
    assert len(printed.splitlines()) == 12
    (one,) = make_report(read_trace(tmp_path / "two_ranks.json")).ranks
    assert (one.last, one.before, one.late) == ("thinker cpu", "thinker cpu/2", 0)
    assert one.steps > 40
