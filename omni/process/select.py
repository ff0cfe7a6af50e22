"""Whether the engine runs in a process of its own."""

import sys

import torch

from omni.engine import EngineOptions
from omni.errors import ConfigError

# An interpreter inside another program has no executable.
_SUPPORTED = sys.platform == "linux" and bool(sys.executable)


def runs_in_process(options: EngineOptions, device: torch.device, places: int = 1) -> bool:
    """By `engine.process`, and by the number of places of its stages. Raises ConfigError for `"thread"` with several
    places, and for `"process"` where it is not supported."""
    if (options.process == "process" or places > 1) and not _SUPPORTED:
        raise ConfigError(
            "engine.process",
            "a process is not supported here: it needs Linux and a Python interpreter",
            'use "thread", with all stages on one device',
        )
    if options.process == "thread" and places > 1:
        problem = 'is "thread", and the stages are placed on several devices or processes'
        raise ConfigError("engine.process", problem, 'leave it out, or set it to "process"')
    if options.process == "auto":
        return _SUPPORTED and (device.type == "cuda" or places > 1)
    return options.process == "process"
