"""Fixtures of the tests of benchmarks."""

import importlib
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

from omni_ar.kernels import tuning
from omni_ar.kernels.tuning import table
from tests.benchmarks.benchmark_script import BENCHMARKS
from tests.omni.engine.launched import pretend_gpu


@pytest.fixture
def tune(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Modules of benchmarks/tune, by name, for an H200 that is not there. No table stays changed."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.syspath_prepend(str(BENCHMARKS / "tune"))
    pretend_gpu(monkeypatch)
    monkeypatch.setattr(table, "_folder", lambda device: "nvidia_h200")
    monkeypatch.setattr(table, "_replaced", {})
    tuning.replace("none", "none", None)
    yield importlib.import_module
    monkeypatch.undo()
    tuning.replace("none", "none", None)
