"""The console entry point as a process, with the echo family and this repository's, whether or not anything is installed."""

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.support.entry_points import SOURCE_ROOTS

_PROGRAM = f"""
import sys
sys.path[:0] = {SOURCE_ROOTS}
from importlib import metadata
from tests.support.entry_points import own_entry_points
points = [metadata.EntryPoint("echo", "tests.support.echo_plugin", "omni"), *own_entry_points()]
found = metadata.entry_points
metadata.entry_points = lambda **chosen: points if chosen.get("group") == "omni" else found(**chosen)
"""
_MAIN = """
from omni.cli import main
main()
"""
_AT_IMPORT = """
class At:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            sys.meta_path.remove(self)
            exec({code!r}, {{}})
sys.meta_path.insert(0, At())
"""


def program(*, before: str = "", at: str = "", code: str = "") -> list[str]:
    """The command. before: run first. code: run when the module `at` is imported for the first time."""
    hook = _AT_IMPORT.format(name=at, code=code) if at else ""
    return [sys.executable, "-c", _PROGRAM + before + hook + _MAIN]


def environment() -> dict[str, str]:
    """Without buffering settings of whoever runs the tests."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONUNBUFFERED", "PYTHONWARNINGS")}


def wait_for_handlers(process: "subprocess.Popen[bytes]", number: int, seconds: float = 60.0) -> None:
    """Until the process catches the signal."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert process.poll() is None
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
        if int(caught.split()[1], 16) >> (number - 1) & 1:
            return
        time.sleep(0.002)
    raise TimeoutError("the signal is not caught")
