"""benchmarks/handoff.py runs both variants of both families, and draws them."""

import importlib
import itertools
import json
from pathlib import Path

import pytest

from tests.benchmarks.benchmark_script import BENCHMARKS, run_script

FAMILIES = {"hidden": {"writer"}, "omni": {"thinker", "talker"}}


@pytest.mark.parametrize("family", FAMILIES)
def test_handoff_compares_both_variants(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, family: str) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    steps, lost = importlib.import_module("bench.steps"), itertools.count(1)
    steady = steps.steady_steps
    monkeypatch.setattr(steps, "steady_steps", lambda *given: steady(*given)[: -next(lost)])
    file = tmp_path / "handoff.json"
    folder = tmp_path / "made" / "by it"
    pictures = ("--pictures", str(folder))
    run_script(
        monkeypatch, "handoff", "--device", "cpu", "--tiny", "--families", family, "--json", str(file), *pictures
    )
    rows = {(row["stage"], row["inline"]): row for row in json.loads(file.read_text())["numbers"]}
    assert set(rows) == {(stage, inline) for stage in FAMILIES[family] for inline in (False, True)}
    for stage in FAMILIES[family]:
        inline, handoffs = rows[stage, True], rows[stage, False]
        assert inline["times"]["steps"] == handoffs["times"]["steps"]  # though one had fewer
        assert inline["experts"] == handoffs["experts"]
        counted, uniform = inline["experts"]
        # Two tokens that choose two of four experts each use two to four.
        assert 2 <= counted <= 4
        assert uniform == 3
    assert (folder / f"handoff-{family}.png").stat().st_size
    names = {name for variant in ("inline", "handoffs") for name in _phases(folder, family, variant)}
    assert "copy_payload" in names
    assert "copy_payload" not in _phases(folder, family, "handoffs")


def test_handoff_tells_its_numbers_before_it_draws(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("nothing to draw with")

    monkeypatch.setattr("omni.timeline.write_trace", fail)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(importlib.import_module("bench.routing"), "TOLERANCE", -1.0)
    file = tmp_path / "handoff.json"
    arguments = ("--device", "cpu", "--tiny", "--families", "hidden", "--json", str(file), "--pictures", str(tmp_path))
    with pytest.raises(RuntimeError, match="nothing to draw with"):
        run_script(monkeypatch, "handoff", *arguments)
    told = capsys.readouterr().out.splitlines()
    for row in json.loads(file.read_text())["numbers"]:
        wall = f"{row['times']['wall'] / 1000:.3f}"
        line = next(line for line in told if wall in line.split() and line.startswith("hidden, writer x 2"))
        assert "VOID" in line


def _phases(folder: Path, family: str, variant: str) -> set[str]:
    trace = json.loads((folder / f"handoff-{family}-{variant}.json").read_text())
    return {event["name"] for event in trace["traceEvents"]}
