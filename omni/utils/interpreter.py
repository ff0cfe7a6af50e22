"""Whether this program can start Python interpreters, as processes beside it."""

import sys
from pathlib import Path

_NAMES = ("python", "pypy")


def _can_start() -> bool:
    # The executable of a frozen program, or of one that Python is a part of, such as uWSGI, would start that program again.
    frozen = bool(vars(sys).get("frozen", False))
    return sys.platform == "linux" and not frozen and Path(sys.executable or "").name.lower().startswith(_NAMES)


CAN_START = _can_start()
"""Needs Linux, and `sys.executable` of a Python interpreter by its name."""
