"""Whether the engine runs in a process of its own."""

import sys

import torch

from omni.engine import EngineOptions
from omni.errors import ConfigError

# An interpreter inside another program has no executable.
_SUPPORTED = sys.platform == "linux" and bool(sys.executable)


def runs_in_process(options: EngineOptions, device: torch.device) -> bool:
    """By `engine.process`. Raises ConfigError for `"process"` where it is not supported."""
    if options.process == "process" and not _SUPPORTED:
        raise ConfigError(
            "engine.process", "is not supported here: it needs Linux and a Python interpreter", 'use "thread"'
        )
    if options.process == "auto":
        return _SUPPORTED and device.type == "cuda"
    return options.process == "process"
