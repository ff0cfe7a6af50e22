"""benchmarks/talk.py runs, and its requests speak as long as they were asked to."""

import json
from pathlib import Path

import pytest

from tests.benchmarks.benchmark_script import run_script

FRAME_SECONDS = {"tiny-omni": 0.08, "tiny-qwen2.5-omni": 2 * 20 / 24000}
"""Of one frame: 12.5 a second, and of the tiny checkpoint's two mel frames of 20 samples."""


@pytest.mark.parametrize("shape", FRAME_SECONDS)
def test_talk_reports_every_concurrency(shape: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file, frames = tmp_path / "talk.json", 8
    sizes = ("--tokens", "4", "--frames", str(frames), "--concurrency", "1", "2", "--rounds", "1")
    run_script(monkeypatch, "talk", "--device", "cpu", "--shape", shape, *sizes, "--json", str(file))
    rounds = json.loads(file.read_text())["numbers"]
    assert [one["requests"] for one in rounds] == [1, 2]
    for one in rounds:
        assert 0 < one["ttft"] < one["first_audio"] <= one["total"]
        assert set(one["rates"]) >= {"thinker", "talker"}
        # Streaming leaves the last piece of a frame to the one that follows.
        spoken = one["requests"] * frames * FRAME_SECONDS[shape]
        assert one["speech"] * one["total"] == pytest.approx(spoken, rel=0.1)
