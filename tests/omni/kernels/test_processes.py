"""Processes compile for a GPU that is not there, and end with those that started them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from triton.runtime.cache import triton_key

from omni.kernels import hash_triton, process_count, processes
from tests.support.entry_points import REPOSITORY
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="processes compile on Linux alone"),
]
SCRIPT = Path(__file__).parent / "compile_here.py"


KEYS = ("keys,clear,double", "keys,double,clear")
CASES = ("cached", "streamed", "missing", "failing", "closed", "killed", "abandoned", *KEYS)
Found = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """The result of a case of `compile_here`, and its output."""
    folder = tmp_path_factory.mktemp("cases")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'stages'}"}
    command = [sys.executable, str(SCRIPT), str(folder), *CASES]
    ran = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=2 * PATIENCE_SECONDS, check=False
    )
    assert ran.returncode == 0, ran.stderr

    def found(case: str) -> dict[str, Any]:
        log, file = (folder / f"{case}.log").read_text(), folder / f"{case}.json"
        assert file.exists(), log
        return {**json.loads(file.read_text()), "log": log}

    return found


def test_triton_s_files_are_hashed_in_a_thread():
    triton_key.cache_clear()
    hash_triton().join(PATIENCE_SECONDS)
    assert triton_key.cache_info().currsize == 1


def test_a_start_finds_the_variants_that_processes_compiled(found: Found):
    done = found("cached")
    assert done["starts"] == [[5, 0, 0], [0, 0, 5]]
    assert (done["compiled"], done["cached"]) == (0, 5)


def test_a_kernel_is_compiled_before_the_next_is_known(found: Found):
    done = found("streamed")
    assert (done["compiled"], done["before the second"]) == (5, 1)


def test_a_start_counts_variants_that_it_compiles_itself(found: Found):
    done = found("missing")
    assert (done["compiled"], done["cached"]) == (5, 0)
    assert "compiled copy_tile at its first launch" in done["log"]


def test_keys_do_not_depend_on_earlier_lookups(found: Found):
    keys = [found(case) for case in KEYS]
    assert keys[0]["clear"] == keys[1]["clear"] != keys[0]["double"] == keys[1]["double"]


def test_a_kernel_that_does_not_compile_stops_no_other(found: Found):
    done = found("failing")
    assert (done["compiled"], done["failed"]) == (1, 1)
    assert "no_such_function" in done["log"]
    for kernel in ("gone", "clear"):
        assert f"compile_here:{kernel} is not compiled by a process" in done["log"]


def test_closed_processes_leave_nothing(found: Found):
    done = found("closed")
    assert (done["left"], done["threads"]) == ([], 1)


def test_a_start_goes_on_without_its_processes(found: Found):
    done = found("killed")
    assert (done["compiled"], done["left"]) == (0, [])
    assert "1 kernels were not compiled" in done["log"]


def test_processes_end_with_the_one_that_started_them(found: Found):
    done = found("abandoned")
    assert done["running"] > 1
    assert done["left"] == []


def test_processes_follow_the_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes, "_cores", lambda: 16)
    assert [process_count(None, engines) for engines in (1, 2, 30)] == [14, 7, 1]
    assert [process_count(asked) for asked in (0, 3)] == [0, 3]
    monkeypatch.setattr(processes, "_cores", lambda: 1)
    assert process_count(None) == 1
    monkeypatch.setattr(processes, "CAN_START", False)
    assert process_count(3) == 0
