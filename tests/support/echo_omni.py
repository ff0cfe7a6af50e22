"""Models of the echo family, and waiting for things that other threads do."""

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from omni.plugin.manager import Plugins, load_plugins
from support.echo_family import write_checkpoint
from support.echo_plugin import POINT
from support.entry_points import own_entry_points
from support.patience import PATIENCE_SECONDS


@cache
def echo_plugins() -> Plugins:
    return load_plugins([POINT, *own_entry_points("local")])


def echo_model(directory: Path, *, speaks: bool = True) -> Path:
    """A checkpoint folder."""
    write_checkpoint(directory / "echo", speaks=speaks)
    return directory / "echo"


def eventually(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> bool:
    """Whether `condition` comes true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True
