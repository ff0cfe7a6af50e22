"""What `conftest.py` and pyproject.toml promise of every test."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import engine

from tests.support.entry_points import REPOSITORY
from tests.support.patience import PATIENCE_SECONDS

HEALED = """
import pytest
from omni.device.cpu import CpuDevice
from omni.testing.faults import FaultyDevice
from tests.support.frame_bench import random_codes
from tests.support.wavemaker import Bench

def heal():
    device = FaultyDevice()
    bench = Bench(device, first_chunk_frames=3, chunk_frames=2)
    for name in "ab":
        bench.open(name)
        bench.feed_pages(name, random_codes(3))
        bench.end(name)
    device.faults.plant(("vocoder", "reset_rows"), 0, after=False)
    bench.settle(device)
    assert bench.vocoder.counters()["retries"] == 1

def test_heals():
    heal()

@pytest.mark.plants_faults
def test_plants():
    heal()

def test_does_neither():
    pass

@pytest.fixture(scope="module")
def before():
    heal()

@pytest.fixture
def after():
    yield
    heal()

def test_with_a_fixture_that_heals(before):
    pass

def test_with_a_teardown_that_heals(after):
    pass

@pytest.mark.slow
def test_slow(request):
    assert request.node.get_closest_marker("timeout").args[0] > 900
"""


def test_a_repeated_batch_fails_the_test_unless_it_plants_faults(tmp_path: Path) -> None:
    shutil.copy(REPOSITORY / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_inner.py").write_text(HEALED)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu\n    slow\n    plants_faults\n")
    roots = [REPOSITORY, *(REPOSITORY / root for root in ("plugins", "connectors", "stages"))]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, roots)), "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", "-rA", "--tb=line", "-p", "no:randomly", "-p", "no:cacheprovider"]
    command += ["--import-mode=importlib", "test_inner.py"]
    ran = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_SECONDS, env=environment, check=False
    )
    told = {line.split(" - ")[0] for line in ran.stdout.splitlines() if "test_inner.py::" in line}
    assert told == {
        "FAILED test_inner.py::test_heals",
        "PASSED test_inner.py::test_plants",
        "PASSED test_inner.py::test_does_neither",
        "ERROR test_inner.py::test_with_a_fixture_that_heals",
        "PASSED test_inner.py::test_with_a_teardown_that_heals",
        "ERROR test_inner.py::test_with_a_teardown_that_heals",
        "PASSED test_inner.py::test_slow",
    }, ran.stdout
    assert "vocoder, decoding a chunk in a batch of 2: PlantedError: planted" in ran.stdout


def test_names_of_tests_have_at_most_70_characters() -> None:
    names = re.compile(r"def (test_\w{66,})\(")
    long = [name for path in (REPOSITORY / "tests").rglob("test_*.py") for name in names.findall(path.read_text())]
    assert long == []


def test_a_hang_ends_and_whoever_waits_may_say_so_before(pytestconfig: pytest.Config) -> None:
    assert PATIENCE_SECONDS < float(pytestconfig.getini("timeout")) <= 1800
    assert pytestconfig.getini("timeout_method") == "thread"


def test_failing_examples_shrink_for_20_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each example takes a second of this clock."""
    clock, ran = [0.0], []

    @settings(database=None, derandomize=True, max_examples=10, report_multiple_bugs=False)
    @given(st.lists(st.integers(0, 10**9), min_size=60, max_size=60))
    def fails(numbers: list[int]) -> None:
        clock[0] += 1
        ran.append(clock[0])
        assert sum(numbers) < 10**9

    def now() -> float:
        return clock[0]

    monkeypatch.setattr(engine, "time", SimpleNamespace(perf_counter=now, monotonic=now))
    with pytest.raises(AssertionError):
        fails()
    first = 10  # examples at most until one fails
    assert 20 < len(ran) <= first + 20 + 5
