"""`benchmarks/crowd.py`: slack of streams, and both kinds of crowds, with omni and with another system."""

import gc
import json
from pathlib import Path

import pytest
import torch

from omni.timeline import read_trace
from omni.timeline.report import make_report
from tests.benchmarks.benchmark_script import BENCHMARKS, run_script

pytestmark = pytest.mark.thorough

OTHER_SYSTEM = """
import asyncio
from contextlib import asynccontextmanager


@asynccontextmanager
async def speaker(arguments):
    async def speak(prompt, seed):
        assert len(prompt.split()) == 60
        for sound in (0.02, 0.01, 5.0):
            await asyncio.sleep(0.05)
            yield sound

    yield speak


@asynccontextmanager
async def fails_once(arguments):
    requests = 0

    async def speak(prompt, seed):
        nonlocal requests
        requests += 1
        if requests == 4:
            raise ConnectionError("the peer is\\n gone")
        await asyncio.sleep(0.01)
        if requests != 6:
            yield 1.0

    yield speak


@asynccontextmanager
async def fails(arguments):
    def speak(prompt, seed):
        raise ValueError(arguments.device)

    yield speak
"""


@pytest.fixture
def other_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Its module is in the working directory, and there is no CUDA device."""
    (tmp_path / "other_system.py").write_text(OTHER_SYSTEM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    return "other_system"


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_slack_is_the_sound_ahead_of_the_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from bench.listening import Chunk, SoundStream, crowd_of

    # Played from 1 to 2, silent until 2.5, played until 3.5: the last chunk comes half a second before that.
    late = SoundStream(10.0, (Chunk(1.0, 1.0), Chunk(2.5, 1.0), Chunk(3.0, 2.0)))
    assert late.slacks == [-0.5, 0.5]
    early = SoundStream(10.5, (Chunk(0.5, 1.0), Chunk(0.75, 3.0)))
    assert early.slacks == [0.75]
    crowd = crowd_of([late, early])
    assert (crowd.streams, crowd.gaps, crowd.least_slack) == (2, 1, -0.5)
    # Eight seconds of sound between 10 and 13.
    assert crowd.sound_per_second == pytest.approx(8 / 3)
    assert (crowd.first_audio_p50, crowd.first_audio_max) == (0.75, 1.0)
    assert crowd.chunks == (1.0, 2.0, 2.0)


def test_crowd_measures_another_system(
    other_system: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, speaker = tmp_path / "crowd.json", f"{other_system}:speaker"
    what = ("--speaker", speaker, "--at-once", "2", "--turns", "2", "--arrivals", "40", "--seconds", "0.5")
    run_script(monkeypatch, "crowd", *what, "--json", str(file))
    found = json.loads(file.read_text())
    loop, poisson = found["numbers"]
    assert (loop["at once"], loop["streams"], loop["failed"], loop["gaps"]) == ("2", 4, 0, 4)
    assert poisson["at once"] == "40 a second"
    assert 5 < poisson["streams"] < 40
    assert loop["first_audio_p50"] >= 0.05
    assert loop["least_slack"] <= -0.03
    assert loop["chunks"] == [0.02, 0.01, 5.0]
    assert found["facts"]["speaker"] == speaker
    assert "shape" not in found["facts"]
    assert found["facts"]["objects excluded from collection"] == gc.get_freeze_count()
    assert f"speaker {speaker}, " in capsys.readouterr().out


def test_a_module_that_is_nowhere_is_refused(
    other_system: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run_script(monkeypatch, "crowd", "--speaker", "nowhere:speaker")
    problem = "argument --speaker: 'nowhere:speaker' is no MODULE:FUNCTION: No module named 'nowhere'"
    assert problem in capsys.readouterr().err


def test_requests_that_fail_are_counted_beside_the_others(
    other_system: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "crowd.json"
    what = ("--speaker", f"{other_system}:fails_once", "--at-once", "2", "1", "--turns", "3", "--json", str(file))
    with pytest.raises(SystemExit) as ended:
        run_script(monkeypatch, "crowd", *what)
    assert ended.value.code == "failed requests: 2; the first: ConnectionError: the peer is gone"
    first, second = json.loads(file.read_text())["numbers"]
    assert (first["streams"], first["failed"]) == (4, 2)
    assert 0.01 <= first["first_audio_p50"] <= first["first_audio_max"]
    assert (second["streams"], second["failed"]) == (3, 0)
    header, *rows = map(cells, capsys.readouterr().out.splitlines()[:3])
    assert header[:3] == ["at once", "streams", "failed"]
    assert [row[:3] for row in rows] == [["2", "4", "2"], ["1", "3", "0"]]


def test_a_row_whose_requests_all_fail_has_dashes(
    other_system: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "crowd.json"
    what = ("--speaker", f"{other_system}:fails", "--at-once", "1", "--turns", "2", "--json", str(file))
    with pytest.raises(SystemExit) as ended:
        run_script(monkeypatch, "crowd", *what)
    assert ended.value.code == "failed requests: 3; the first: ValueError: cuda", "that of the warm-up counts"
    header, row = map(cells, capsys.readouterr().out.splitlines()[:2])
    assert row == ["1", "0", "3", *"-" * 9]
    assert len(row) == len(header)
    (numbers,) = json.loads(file.read_text())["numbers"]
    assert (numbers["streams"], numbers["failed"]) == (0, 3)
    assert {value for name, value in numbers.items() if name not in ("at once", "streams", "failed")} == {None}


def test_a_time_without_an_arrival_has_a_row_of_dashes(
    other_system: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    what = ("--at-once", "--arrivals", "0.1", "--seconds", "1e-9")
    run_script(monkeypatch, "crowd", "--speaker", f"{other_system}:speaker", *what)
    header, row = map(cells, capsys.readouterr().out.splitlines()[:2])
    assert row == ["0.1 a second", "0", "0", *"-" * 9]
    assert len(row) == len(header)


def test_crowd_measures_omni(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file, timeline = tmp_path / "crowd.json", tmp_path / "timeline.json"
    what = ("--device", "cpu", "--shape", "tiny-omni", "--tokens", "4", "--frames", "20", "--at-once", "1", "2")
    settings = ("--set", "engine.scheduling=slack", f"engine.timeline={timeline}")
    run_script(monkeypatch, "crowd", *what, "--turns", "1", "--rest", "0", "--json", str(file), *settings)
    found = json.loads(file.read_text())
    numbers = found["numbers"]
    assert (found["facts"]["shape"], "speaker" in found["facts"]) == ("tiny-omni", False)
    assert found["facts"]["objects excluded from collection"] > 10_000
    assert [one["streams"] for one in numbers] == [1, 2]
    for one in numbers:
        assert 0 < one["first_audio_p50"] <= one["first_audio_p95"] <= one["first_audio_max"]
        assert one["sound_per_second"] > 0
    report = make_report(read_trace(timeline))
    assert sum(one.chunks for one in report.chunks if one.first) == 1 + 1 + 2 + 2, "each row warms up once"
    assert all((one.slack is None) == one.first for one in report.chunks)
    (waiting,) = (one for one in report.turns if one.listeners == "one waits at the sound stages")
    assert {"talker", "code2wav"} <= {each.stage for each in waiting.stages}
