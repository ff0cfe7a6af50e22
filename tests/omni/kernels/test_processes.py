"""Processes compile for a GPU that is not there, and end with those that started them."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from omni.kernels import process_count, processes
from tests.support.entry_points import REPOSITORY
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="processes compile on Linux alone"),
]
SCRIPT = Path(__file__).parent / "compile_here.py"


def start(case: str, cache: Path, *arguments: str) -> "subprocess.Popen[str]":
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'stages'}"}
    command = [sys.executable, str(SCRIPT), case, *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def found(case: str, cache: Path, *arguments: str) -> Any:
    with start(case, cache, *arguments) as process:
        out, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors
    return {**json.loads(out), "log": errors}


def test_a_start_finds_what_processes_compiled(tmp_path: Path):
    done = found("cached", tmp_path)
    assert done["starts"] == [[5, 0, 0], [0, 0, 5]]
    assert (done["compiled"], done["cached"]) == (0, 5)


def test_a_start_counts_what_it_compiles_itself(tmp_path: Path):
    done = found("missing", tmp_path)
    assert (done["compiled"], done["cached"]) == (5, 0)
    assert "compiled copy_tile at its first launch" in done["log"]


def test_keys_do_not_depend_on_what_was_looked_up_before(tmp_path: Path):
    keys = [found("keys", tmp_path, *order) for order in (("clear", "double"), ("double", "clear"))]
    assert keys[0]["clear"] == keys[1]["clear"] != keys[0]["double"] == keys[1]["double"]


def test_a_kernel_that_does_not_compile_stops_no_other(tmp_path: Path):
    done = found("failing", tmp_path)
    assert (done["compiled"], done["failed"]) == (1, 1)
    assert "no_such_function" in done["log"]
    assert "compile_here:gone is not compiled by a process" in done["log"]


def test_closed_processes_leave_nothing(tmp_path: Path):
    done = found("closed", tmp_path)
    assert (done["left"], done["threads"]) == ([], 1)


def test_a_start_goes_on_without_its_processes(tmp_path: Path):
    done = found("killed", tmp_path)
    assert (done["compiled"], done["left"]) == (0, [])
    assert "1 kernels were not compiled" in done["log"]


def test_processes_end_with_the_one_that_started_them(tmp_path: Path):
    with start("abandoned", tmp_path) as process:
        assert process.stdout is not None
        pids = json.loads(process.stdout.readline())
        process.kill()
    assert len(pids) > 1
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(running(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(running(pid) for pid in pids)


def running(pid: int) -> bool:
    try:
        return "omni.kernels.compiler" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


def test_processes_follow_the_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes, "_cores", lambda: 16)
    assert [process_count(None, engines) for engines in (1, 2, 30)] == [14, 7, 1]
    assert [process_count(asked) for asked in (0, 3)] == [0, 3]
    monkeypatch.setattr(processes, "_cores", lambda: 1)
    assert process_count(None) == 1
    monkeypatch.setattr(processes, "_SUPPORTED", False)
    assert process_count(3) == 0
