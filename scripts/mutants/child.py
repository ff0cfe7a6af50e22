"""A forked process that runs tests: it writes a line of JSON for each thing that happens, and leaves nothing behind."""

import json
import os
import resource
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from .record import Marks, Run

# A fault that allocates for ever must not take the machine along.
MORE_MEMORY = 6 << 30


class Reports:
    """Plugin: the outcome of the newest test."""

    def __init__(self) -> None:
        self.failed = self.skipped = False
        self.setup = self.seconds = 0.0
        self.why = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "setup":
            self.__init__()  # type: ignore[misc]  # the first report of a test
            self.setup = report.duration
        else:
            self.seconds += report.duration
        self.failed |= report.failed
        self.skipped |= report.skipped
        if report.failed:
            self.why = report.longreprtext.splitlines()[-1][:200] if report.longreprtext else ""


def fork(work: Callable[[Callable[[object], None]], None]) -> tuple[int, int]:
    """Runs `work` in a child, with a function that tells the parent something; returns its id, and the file to read that from."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    os.close(reading)
    code = 1
    scratch = tempfile.mkdtemp(prefix="mutants-")
    try:
        _be_apart(scratch)
        with os.fdopen(writing, "w", buffering=1) as pipe:
            work(lambda said: print(json.dumps(said), file=pipe))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        os._exit(code)


def run_until_failure(items: list[pytest.Item], reports: Reports, tell: Callable[[object], None]) -> None:
    for at, item in enumerate(items):
        tell({"runs": item.nodeid})
        _run(item, items[at + 1] if at + 1 < len(items) else None)
        if reports.failed:
            tell({"failed": item.nodeid, "why": reports.why})
            return
    tell({"passed": len(items)})


def run_recorded(items: list[pytest.Item], reports: Reports, marks: Marks, tell: Callable[[object], None]) -> None:
    for at, item in enumerate(items):
        tell({"runs": item.nodeid})
        marks.clear()
        _run(item, items[at + 1] if at + 1 < len(items) else None)
        passed = not (reports.failed or reports.skipped)
        run = Run(item.nodeid, round(reports.seconds, 3), round(reports.setup, 3), passed, marks.take())
        tell({"run": asdict(run), "why": reports.why})
    tell({"passed": len(items)})


def _run(item: pytest.Item, following: pytest.Item | None) -> None:
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)


def _be_apart(scratch: str) -> None:
    """Gives the child its own folder and session, no output, and an end to the memory that it can take."""
    os.setsid()
    os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.tempdir = scratch
    silence = os.open(Path(scratch) / "output", os.O_WRONLY | os.O_CREAT)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + MORE_MEMORY, resource.RLIM_INFINITY))
