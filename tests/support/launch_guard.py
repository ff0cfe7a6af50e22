"""Finds torch work outside `Device.launch`."""

import threading
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from omni.device import Device


class LaunchGuard(TorchDispatchMode):
    """Raises for every torch operation of this thread, outside a launch, that is more than a view."""

    def __init__(self, device: Device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self._thread = threading.get_ident()
        self.launched: set[str] = set()
        """Names of the phases seen at work."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        phase = self._device.launching
        if phase is not None:
            self.launched.add(phase)
        elif not func.is_view and threading.get_ident() == self._thread:
            raise AssertionError(f"{func} touches memory outside a phase")
        return func(*args, **(kwargs or {}))


def reads_memory(device: Device) -> bool:
    """Whether the guard would find the most innocent of reads."""
    value = torch.ones(2)
    try:
        with LaunchGuard(device):
            value.sum()
    except AssertionError:
        return True
    return False
