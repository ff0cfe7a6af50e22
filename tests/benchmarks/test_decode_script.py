"""benchmarks/decode.py runs, and what it counts is what was asked for."""

import json
from pathlib import Path

import pytest

from support.benchmark_script import run_script


def test_decode_reports_every_case(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "decode.json"
    run_script(monkeypatch, "decode", "--device", "cpu", "--tiny", "--rows", "2", "--json", str(file))
    report = json.loads(file.read_text())
    cases = {(case["shape"], case["rows"]): case for case in report["numbers"]["decode"]}
    assert set(cases) == {("tiny-text", 2), ("tiny-omni", 2)}
    for case in cases.values():
        assert case["times"]["steps"] >= 16
    assert cases["tiny-text", 2]["experts"] is None
    # Two tokens that choose two of four experts each use two to four.
    assert 2 <= cases["tiny-omni", 2]["experts"][0] <= 4
    assert report["numbers"]["hidden"]["rows"] == 2
    assert report["facts"]["commit"]
    assert "hidden states gathered / none" in capsys.readouterr().out
