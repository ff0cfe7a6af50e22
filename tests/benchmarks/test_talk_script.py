"""benchmarks/talk.py runs, and its requests speak as long as they were asked to."""

import json
from pathlib import Path

import pytest

from support.benchmark_script import run_script

SECONDS_PER_FRAME = 0.08
"""12.5 frames a second."""


def test_talk_reports_every_concurrency(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    sizes = ("--tokens", "4", "--frames", "8", "--concurrency", "1", "2", "--rounds", "1")
    run_script(monkeypatch, "talk", "--device", "cpu", "--tiny", *sizes, "--json", str(file))
    rounds = json.loads(file.read_text())["numbers"]
    assert [one["requests"] for one in rounds] == [1, 2]
    for one in rounds:
        assert 0 < one["ttft"] < one["first_audio"] <= one["total"]
        assert set(one["rates"]) >= {"thinker", "talker"}
        # Streaming leaves the last piece of a frame to the one that follows.
        assert one["speech"] * one["total"] == pytest.approx(one["requests"] * 8 * SECONDS_PER_FRAME, rel=0.1)
