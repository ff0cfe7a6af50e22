"""`benchmarks/crowd.py`: slack of streams, and both kinds of crowds, with omni and with another system."""

import json
from pathlib import Path

import pytest

from omni.timeline import read_trace
from omni.timeline.report import make_report
from tests.benchmarks.benchmark_script import BENCHMARKS, run_script

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
"""


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


def test_crowd_measures_another_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "other_system.py").write_text(OTHER_SYSTEM)
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "crowd.json"
    what = ("--device", "cpu", "--shape", "tiny-omni", "--speaker", "other_system:speaker", "--at-once", "2")
    run_script(monkeypatch, "crowd", *what, "--turns", "2", "--arrivals", "40", "--seconds", "0.5", "--json", str(file))
    loop, poisson = json.loads(file.read_text())["numbers"]
    assert (loop["at once"], loop["streams"], loop["gaps"]) == ("2", 4, 4)
    assert poisson["at once"] == "40 a second"
    assert 5 < poisson["streams"] < 40
    assert loop["first_audio_p50"] >= 0.05
    assert loop["least_slack"] <= -0.03
    assert loop["chunks"] == [0.02, 0.01, 5.0]


def test_crowd_measures_omni(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file, timeline = tmp_path / "crowd.json", tmp_path / "timeline.json"
    what = ("--device", "cpu", "--shape", "tiny-omni", "--tokens", "4", "--frames", "20", "--at-once", "1", "2")
    settings = ("--set", "engine.scheduling=slack", f"engine.timeline={timeline}")
    run_script(monkeypatch, "crowd", *what, "--turns", "1", "--rest", "0", "--json", str(file), *settings)
    numbers = json.loads(file.read_text())["numbers"]
    assert [one["streams"] for one in numbers] == [1, 2]
    for one in numbers:
        assert 0 < one["first_audio_p50"] <= one["first_audio_p95"] <= one["first_audio_max"]
        assert one["sound_per_second"] > 0
    report = make_report(read_trace(timeline))
    assert sum(one.chunks for one in report.chunks if one.first) == 1 + 1 + 2 + 2, "each row warms up once"
    assert all((one.slack is None) == one.first for one in report.chunks)
    (waiting,) = (one for one in report.turns if one.listeners == "one waits at the sound stages")
    assert {"talker", "code2wav"} <= {each.stage for each in waiting.stages}
