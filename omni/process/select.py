"""Whether the engine runs in a process of its own, and the threads of torch there."""

import os
from collections.abc import Sequence

import torch

from omni.engine import EngineOptions, device_of
from omni.errors import ConfigError
from omni.utils.interpreter import CAN_START
from omni.utils.log import safe_logger

_log = safe_logger(__name__)

_NEEDS = "it needs Linux, and the executable of a Python interpreter"


def runs_in_process(options: EngineOptions, device: torch.device, places: int = 1) -> bool:
    """Whether the engine runs in a process of its own, by `engine.process` and the number of places of its stages. Raises
    ConfigError for `"thread"` with several places, and for `"process"` where it is not supported."""
    if (options.process == "process" or places > 1) and not CAN_START:
        raise ConfigError(
            "engine.process",
            f"a process is not supported here: {_NEEDS}",
            'use "thread", with all stages on one device',
        )
    if options.process == "thread" and places > 1:
        problem = 'is "thread", and the stages are placed on several devices or processes'
        raise ConfigError("engine.process", problem, 'leave it out, or set it to "process"')
    if options.process == "auto":
        return CAN_START and (device.type == "cuda" or places > 1)
    return options.process == "process"


def warn_of_thread(options: EngineOptions, device: torch.device) -> None:
    """Warns of an engine in a thread, if by default it would have a process, and none can be started here."""
    if options.process == "auto" and device.type == "cuda" and not CAN_START:
        _log.warning(
            "engine.process: the engine runs in a thread, where other Python code of the program delays each step: "
            "a process is not supported here: %s",
            _NEEDS,
        )


def threads_of(place: str, places: Sequence[str]) -> int:
    """The threads of torch in the engine's process on a place: those of this process, by default one for each core. Engines on the
    CPU divide them, unless `OMP_NUM_THREADS` is set: it is the number for each."""
    threads = torch.get_num_threads()
    if device_of(place).type != "cpu" or os.environ.get("OMP_NUM_THREADS"):
        return threads
    return max(1, threads // sum(device_of(each).type == "cpu" for each in places))
