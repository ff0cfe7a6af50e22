"""benchmarks/handoff.py runs both variants of both families, and draws them."""

import json
from pathlib import Path

import pytest

from support.benchmark_script import run_script

FAMILIES = {"hidden": {"writer"}, "omni": {"thinker", "talker"}}


@pytest.mark.parametrize("family", FAMILIES)
def test_handoff_compares_both_variants(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, family: str) -> None:
    file = tmp_path / "handoff.json"
    folder = tmp_path / "made" / "by it"
    pictures = ("--pictures", str(folder))
    run_script(
        monkeypatch, "handoff", "--device", "cpu", "--tiny", "--families", family, "--json", str(file), *pictures
    )
    rows = json.loads(file.read_text())["numbers"]
    assert {(row["stage"], row["inline"]) for row in rows} == {
        (stage, inline) for stage in FAMILIES[family] for inline in (False, True)
    }
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
    file = tmp_path / "handoff.json"
    arguments = ("--device", "cpu", "--tiny", "--families", "hidden", "--json", str(file), "--pictures", str(tmp_path))
    with pytest.raises(RuntimeError, match="nothing to draw with"):
        run_script(monkeypatch, "handoff", *arguments)
    told = capsys.readouterr().out.splitlines()
    for row in json.loads(file.read_text())["numbers"]:
        wall = f"{row['times']['wall'] / 1000:.3f}"
        assert any(wall in line.split() and line.startswith("hidden, writer x 2") for line in told)


def _phases(folder: Path, family: str, variant: str) -> set[str]:
    trace = json.loads((folder / f"handoff-{family}-{variant}.json").read_text())
    return {event["name"] for event in trace["traceEvents"]}
