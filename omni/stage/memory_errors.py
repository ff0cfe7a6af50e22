"""Errors for memory that runs out at start: they name the allocation, and options that reduce it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from omni.device import Device
from omni.errors import ConfigError
from omni.utils.origin import origin_outside, with_place

_LARGER = "take a device with more memory free"
_HOST = "DefaultCPUAllocator"
"""Text in the message of the host memory allocator, whose error has no type of its own."""


class InsufficientMemoryError(ConfigError):
    """The device or the host has too little memory for the settings."""


@contextmanager
def memory_errors(stage: str, what: str, device: Device, options: Sequence[str] = ()) -> Iterator[None]:
    """Raises InsufficientMemoryError if memory of the device or the host is insufficient for `what`, and ConfigError if a phase
    cannot be captured. The innermost of nested contexts applies: a kind's message is more specific than its caller's.

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
        on_host = not isinstance(error, torch.OutOfMemoryError) and device.torch_device.type != "cpu"
        if on_host and (isinstance(error, MemoryError) or device.torch_device.type == "meta" or _HOST in str(error)):
            raise _full_host(error, stage, what, device, options) from error
        problem = f"{device.torch_device} has insufficient memory for {what} of stage {stage!r}"
        problem = with_place(problem, origin_outside(error))
        raise InsufficientMemoryError("engine.device", problem, _remedy(_LARGER, stage, options)) from error


def full_memory(error: BaseException) -> BaseException | None:
    """The out-of-memory error that `error` is, or is caused by; None if it has another reason."""
    cause: BaseException | None = error
    while cause is not None:
        # The CPU's allocator has no exception type of its own.
        allocating = isinstance(cause, RuntimeError) and "alloc" in str(cause)
        if allocating or isinstance(cause, torch.OutOfMemoryError | MemoryError):
            return cause
        cause = cause.__cause__
    return None


def _full_host(
    error: BaseException, stage: str, what: str, device: Device, options: Sequence[str]
) -> InsufficientMemoryError:
    """The error of a failed host allocation: the device had free memory, or needs none (`MetaDevice`)."""
    measured = ", while its footprint was measured without a device" if device.torch_device.type == "meta" else ""
    problem = with_place(
        f"the host has insufficient memory for {what} of stage {stage!r}{measured}", origin_outside(error)
    )
    larger = "create tensors on the device of the StageContext, or free memory of the host"
    return InsufficientMemoryError(f"pipeline.stages.{stage}", problem, _remedy(larger, stage, options))


def _remedy(larger: str, stage: str, options: Sequence[str]) -> str:
    if not options:
        return f"{larger}, or smaller options"
    *others, last = [f"{stage}.{option}" for option in options]
    return f"lower {', '.join(others)} or {last}, or {larger}" if others else f"lower {last}, or {larger}"
