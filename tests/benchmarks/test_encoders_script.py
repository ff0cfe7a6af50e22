"""benchmarks/encoders.py runs, and captured batches give what others do."""

import json
from pathlib import Path

import pytest

from tests.benchmarks.benchmark_script import run_script


def test_encoders_measures_both_towers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "encoders.json"
    run_script(monkeypatch, "encoders", "--device", "cpu", "--tiny", "--json", str(file))
    rows = json.loads(file.read_text())["numbers"]
    sizes = [(row["tower"], row["embeddings"]) for row in rows]
    assert sizes == [("vision_encoder", 16), ("vision_encoder", 64), ("audio_encoder", 13)]
    for row in rows:
        assert row["host ms"] > 0
        assert row["device ms"] > 0
        # Padding changes the order of sums and nothing else.
        assert row["apart"] < 1e-5
