"""The sync guard reports where the host waits for the device. `OMNI_SYNC_CHECK` enables it for the engine's thread."""

import os
import threading
import traceback
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from enum import Enum
from pathlib import Path
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from omni.device.allocations import OperatorMode
from omni.device.base import Device
from omni.device.sync_operators import COPY, MAKES, READS, Operator
from omni.device.sync_points import sync_allowed
from omni.errors import ConfigError, SyncError
from omni.utils.log import safe_logger

VARIABLE = "OMNI_SYNC_CHECK"
_FRAMES = 6
_LIBRARY = (str(Path(torch.__file__).parent), __file__)

_log = safe_logger(__name__)


class SyncCheck(Enum):
    """The reaction to a wait for the device. WARN logs each location once, ERROR raises SyncError."""

    OFF = ""
    WARN = "warn"
    ERROR = "error"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "SyncCheck":
        value = environment.get(VARIABLE, "")
        try:
            return cls(value)
        except ValueError:
            raise ConfigError(VARIABLE, f"{value!r} is not a check", 'use "warn" or "error", or unset it') from None


class _Here(threading.local):
    guard: "SyncGuard | None" = None


_here = _Here()


class SyncGuard:
    """While entered, reports every operation of this thread that makes the host wait for `device`, outside `may_sync`.

    On a CUDA device: operations on its tensors, copies to and from the host that block or use pageable memory, and
    `Device.synchronize`. On the CPU it shows the waits of a GPU: tensors inside a phase count as device tensors, the
    memory of a `HostSlot` as host memory. Calls beside torch's operators and `Device` are not seen. seen: reported
    locations.
    """

    def __init__(self, device: Device, check: SyncCheck) -> None:
        self.device = device
        self.seen: set[str] = set()
        self._check = check
        self._modes: list[AbstractContextManager[object]] = [_Operators(self)]
        if device.torch_device.type == "cpu":
            self._modes.append(_Methods(self))
        self._entered = ExitStack()

    def __enter__(self) -> Self:
        for mode in self._modes:
            self._entered.enter_context(mode)
        self._outer, _here.guard = _here.guard, self
        return self

    def __exit__(self, *exception: object) -> None:
        _here.guard = self._outer
        self._entered.close()

    def report(self, operation: str, remedy: str) -> None:
        """Reports a wait. Raises SyncError if the check is ERROR."""
        if sync_allowed():
            return
        error = SyncError(operation, self.device.launching, remedy)
        frames = [frame for frame in traceback.extract_stack() if not frame.filename.startswith(_LIBRARY)]
        location = f"{operation} {frames[-1].filename}:{frames[-1].lineno}"
        known = location in self.seen
        self.seen.add(location)
        if self._check is SyncCheck.ERROR:
            raise error
        if not known:
            stack = "".join(traceback.format_list(frames[-_FRAMES:])).rstrip()
            _log.warning("%s\n%s", error, stack)


def sync_guard(device: Device, check: SyncCheck) -> AbstractContextManager[object]:
    """The guard for the thread that drives `device`; no guard if the check is off."""
    return nullcontext() if check is SyncCheck.OFF else SyncGuard(device, check)


def host_waits(operation: str) -> None:
    """Reports that a device makes the host wait. For implementations of devices."""
    if _here.guard is not None:
        _here.guard.report(operation, "poll an event, once per tick")


class _Operators(OperatorMode):
    def __init__(self, guard: SyncGuard) -> None:
        super().__init__()
        self._guard = guard
        self._cpu = guard.device.torch_device.type == "cpu"

    def operate(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
        if sync_allowed() or (self._cpu and self._guard.device.launching is None):
            return func(*args, **kwargs)
        operator = Operator.of(func)
        if operator.waits is not None or operator.by_arguments:
            self._look(operator, args, kwargs)
        elif operator.composite:
            return self.decompose(func, args, kwargs)
        return func(*args, **kwargs)

    def _look(self, operator: Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        remedy = operator.remedy(args, kwargs)
        if remedy is not None and self._on_device(args, kwargs):
            self._guard.report(f"torch.{operator.name}", remedy)
        copy = operator.copied(args, kwargs)
        if copy is not None and (copy.waits_where_the_cpu_stands_in if self._cpu else copy.waits):
            self._guard.report(f"torch.{operator.name}", COPY)

    def _on_device(self, *trees: object) -> bool:
        device = self._guard.device.torch_device
        return any(isinstance(leaf, torch.Tensor) and leaf.device.type == device.type for leaf in tree_leaves(trees))


class _Methods(TorchFunctionMode):
    """Methods and functions on CPU tensors that run no operator."""

    def __init__(self, guard: SyncGuard) -> None:
        super().__init__()
        self._guard = guard

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        kwargs = kwargs or {}
        if self._guard.device.launching is not None:
            if func in READS:
                self._guard.report(f"Tensor.{func.__name__}", READS[func])
            elif func in MAKES and kwargs.get("device") is not None and not isinstance(args[0], torch.Tensor):
                self._guard.report(f"torch.{func.__name__}", COPY)
        return func(*args, **kwargs)
