"""What `conftest.py` and pyproject.toml promise of every test."""

import os
import re
import shutil
import subprocess
import sys
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


LEAVES = """
import importlib, os, signal, sys

def test_leaves_changes_that_later_files_would_find(tmp_path, monkeypatch):
    (tmp_path / "made_here.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("made_here")
    os.environ["LEFT"] = "yes"
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
"""
FINDS = """
import os, sys

def test_finds_them():
    assert os.environ["LEFT"] == "yes"
    assert "made_here" not in sys.modules
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> "subprocess.CompletedProcess[str]":
    """The files above, under the tests' `conftest.py`."""
    folder = tmp_path_factory.mktemp("inner")
    shutil.copy(REPOSITORY / "tests" / "conftest.py", folder)
    files = {"test_inner.py": HEALED, "test_leaving.py": LEAVES, "test_next.py": FINDS}
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu\n    slow\n    plants_faults\n")
    roots = [REPOSITORY, *(REPOSITORY / root for root in ("plugins", "connectors", "stages"))]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, roots)), "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", "-rA", "--tb=line", "-p", "no:randomly", "-p", "no:cacheprovider"]
    command += ["--import-mode=importlib", *files]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_SECONDS, env=environment, check=False
    )


def verdicts(ran: "subprocess.CompletedProcess[str]", *files: str) -> set[str]:
    return {line.split(" - ")[0] for line in ran.stdout.splitlines() if any(f"{file}::" in line for file in files)}


def test_a_repeated_batch_fails_the_test_unless_it_plants_faults(ran: "subprocess.CompletedProcess[str]") -> None:
    assert verdicts(ran, "test_inner.py") == {
        "FAILED test_inner.py::test_heals",
        "PASSED test_inner.py::test_plants",
        "PASSED test_inner.py::test_does_neither",
        "ERROR test_inner.py::test_with_a_fixture_that_heals",
        "PASSED test_inner.py::test_with_a_teardown_that_heals",
        "ERROR test_inner.py::test_with_a_teardown_that_heals",
        "PASSED test_inner.py::test_slow",
    }, ran.stdout
    assert "vocoder, decoding a chunk in a batch of 2: PlantedError: planted" in ran.stdout


def test_a_file_that_changes_the_process_fails(ran: "subprocess.CompletedProcess[str]") -> None:
    assert verdicts(ran, "test_leaving.py", "test_next.py") == {
        "PASSED test_leaving.py::test_leaves_changes_that_later_files_would_find",
        "ERROR test_leaving.py::test_leaves_changes_that_later_files_would_find",
        "PASSED test_next.py::test_finds_them",
    }, ran.stdout
    for change in ("os.environ['LEFT']: 'nothing' -> 'yes'", "signal.getsignal(SIGUSR1): "):
        assert change in ran.stdout


def test_names_of_tests_have_at_most_70_characters() -> None:
    names = re.compile(r"def (test_\w{66,})\(")
    long = [name for path in (REPOSITORY / "tests").rglob("test_*.py") for name in names.findall(path.read_text())]
    assert long == []


def test_a_hang_ends_and_a_wait_may_report_it_before(pytestconfig: pytest.Config) -> None:
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
