"""Scripts print the facts of a run with their numbers: hardware, versions, commit."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

from tests.benchmarks.benchmark_script import BENCHMARKS, run_script

FACTS = ("command python", "commit", "hardware", "host", "torch", "triton", "python")


def _has_facts(line: str) -> bool:
    return all(part.startswith(name) for name, part in zip(FACTS, line.split(", "), strict=True))


def test_load_prints_facts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run_script(monkeypatch, "load", "--gigabytes", "0.03", "--shard", "0.01", "--device", "cpu")
    first, again, facts = capsys.readouterr().out.splitlines()
    assert first.startswith("first: ")
    assert again.startswith("again: ")
    assert _has_facts(facts)


def test_timeline_cost_prints_and_writes_facts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cost.json"
    run_script(monkeypatch, "timeline_cost", "--repeats", "2", "--json", str(file))
    *_, facts = capsys.readouterr().out.splitlines()
    assert _has_facts(facts)
    report = json.loads(file.read_text())
    assert report["facts"]["torch"] == torch.__version__
    assert set(report["numbers"]) == {"launch without observers", "launch, timeline off", "launch, recorded"}


def test_layers_prints_facts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "argv", ["layers.py"])
    layers = importlib.import_module("layers")
    for needs_cuda in ("need_cuda", "Stack", "Predictor", "show"):
        monkeypatch.setattr(layers, needs_cuda, lambda *_: None)
    layers.main()
    assert _has_facts(capsys.readouterr().out.strip())
