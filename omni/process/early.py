"""The process of an engine, started before the user's process has imported torch: both import at the same time."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from omni.config import SettingsLayer
from omni.pipeline import ENGINE
from omni.process.child import EngineProcess
from omni.utils.interpreter import CAN_START

_NVIDIA = Path("/dev/nvidiactl")


_ahead: dict[tuple[str | None, str | None], EngineProcess] = {}
"""Processes that no model has taken yet, by folder and family."""


def has_nvidia_driver() -> bool:
    """Whether the driver of a CUDA device is loaded. Calls no driver and needs no torch."""
    return _NVIDIA.exists()


@contextmanager
def engine_ahead(model: str | os.PathLike[str], layers: Sequence[SettingsLayer], family: str | None) -> Iterator[None]:
    """Starts the process that `start_early` gives for the same model while this is entered. For a program that imports torch before
    it opens the model. Arguments and errors are those of `start_early`. A process that was not taken is ended."""
    process = start_early(model, layers, family)
    if process is None:
        yield
        return
    key = _folder_of(model), family
    _ahead[key] = process
    try:
        yield
    finally:
        if _ahead.pop(key, None) is not None:
            process.discard()


def start_early(
    model: str | os.PathLike[str], layers: Sequence[SettingsLayer], family: str | None
) -> EngineProcess | None:
    """The process of a model's engine; None if its settings request none, or if the need is unknown before torch is imported.
    Raises OSError if it cannot be started.

    The caller ends a process that turns out to be unnecessary, such as one for `"auto"` with a torch without CUDA.
    """
    if not CAN_START or not _wanted(layers):
        return None
    folder = _folder_of(model)
    return _ahead.pop((folder, family), None) or EngineProcess(folder, family)


def _folder_of(model: str | os.PathLike[str]) -> str | None:
    """None for a model that is not on this machine: its stages are unknown."""
    return str(model) if Path(model).is_dir() else None


def _wanted(layers: Sequence[SettingsLayer]) -> bool:
    """Whether unchecked settings request a process, as `runs_in_process` decides."""
    settings: dict[str, object] = {}
    for layer in layers:
        values: Mapping[str, object] = layer.spread(ENGINE).values
        settings |= {path: value for path, value in values.items() if path.startswith(f"{ENGINE}.")}
    process, device = settings.get(f"{ENGINE}.process", "auto"), settings.get(f"{ENGINE}.device")
    if process != "auto":
        return process == "process"
    return has_nvidia_driver() if device is None else str(device).startswith("cuda")
