"""benchmarks/decode.py runs, what it counts is what was asked for, and a time that says nothing is told as such."""

import importlib
import json
from pathlib import Path

import pytest

from tests.benchmarks.benchmark_script import BENCHMARKS, run_script


@pytest.mark.parametrize("tolerance", [-1.0, 1.0])
def test_decode_reports_every_case(
    tolerance: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(importlib.import_module("bench.routing"), "TOLERANCE", tolerance)
    file = tmp_path / "decode.json"
    run_script(monkeypatch, "decode", "--device", "cpu", "--tiny", "--rows", "2", "--json", str(file))
    report = json.loads(file.read_text())
    cases = {(case["shape"], case["rows"]): case for case in report["numbers"]["decode"]}
    assert set(cases) == {("tiny-text", 2), ("tiny-omni", 2)}
    for case in cases.values():
        assert case["times"]["steps"] >= 16
    assert cases["tiny-text", 2]["experts"] is None
    hidden = report["numbers"]["hidden"]
    for counted, uniform in (cases["tiny-omni", 2]["experts"], hidden["experts"]):
        # Two tokens that choose two of four experts each use two to four.
        assert 2 <= counted <= 4
        assert uniform == 3
    assert hidden["rows"] == 2
    assert hidden["steps"] == 16
    assert report["facts"]["commit"]
    void = [line.split(",")[0].split("  ")[0] for line in capsys.readouterr().out.splitlines() if "VOID" in line]
    assert void == (["tiny-omni decode", "hidden states gathered / none"] if tolerance < 0 else [])
