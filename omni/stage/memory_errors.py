"""Errors for memory that runs out at start: they name the allocation, and options that reduce it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from omni.device import Device
from omni.errors import ConfigError


class NoRoomError(ConfigError):
    """The device has too little memory for what the settings ask for."""


@contextmanager
def memory_errors(stage: str, what: str, device: Device, options: Sequence[str] = ()) -> Iterator[None]:
    """Raises NoRoomError if the device has no memory for `what`, and ConfigError if a phase cannot be captured. The innermost of
    nested contexts applies: a kind's message is more specific than its caller's.

    options: options of the stage that reduce its memory.
    """
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        full = full_memory(error) is error
        notes: list[str] = vars(error).get("__notes__", [])
        if not isinstance(error, torch.OutOfMemoryError | MemoryError) and any("captured" in note for note in notes):
            problem = f"stage {stage!r} cannot be captured: {error} ({', '.join(notes)})"
            remedy = "remove the synchronization from the phase, or run without graphs (--eager, engine.graphs=false)"
            raise ConfigError("engine.graphs", problem, remedy) from error
        if not full:
            raise
        problem = f"{device.torch_device} has no room for {what} of stage {stage!r}"
        raise NoRoomError("engine.device", problem, _remedy(stage, options)) from error


def full_memory(error: BaseException) -> BaseException | None:
    """The error of full memory that `error` is, or is caused by; None if it has another reason."""
    cause: BaseException | None = error
    while cause is not None:
        # The CPU's allocator has no exception type of its own.
        allocating = isinstance(cause, RuntimeError) and "alloc" in str(cause)
        if allocating or isinstance(cause, torch.OutOfMemoryError | MemoryError):
            return cause
        cause = cause.__cause__
    return None


def _remedy(stage: str, options: Sequence[str]) -> str:
    larger = "take a device with more memory free"
    if not options:
        return f"{larger}, or smaller options"
    *others, last = [f"{stage}.{option}" for option in options]
    return f"lower {', '.join(others)} or {last}, or {larger}" if others else f"lower {last}, or {larger}"
