"""Runs a script of benchmarks/ in this process, as `python benchmarks/NAME.py` would."""

import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run_script(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str) -> None:
    """name: without its suffix. Modules beside it are imported from its folder."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    path = str(BENCHMARKS / f"{name}.py")
    monkeypatch.setattr(sys, "argv", [path, *arguments])
    runpy.run_path(path, run_name="__main__")
