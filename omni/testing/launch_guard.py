"""Enforces the rule that device memory is accessed only inside phases."""

from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from omni.device import Device
from omni.device.allocations import OperatorMode
from omni.testing.retries import no_retries
from omni.testing.simulation.operations import Nature, describe


class LaunchGuard(OperatorMode):
    """While entered, a torch operation of this thread outside a phase of `device` raises AssertionError. Views are allowed.
    Composite operations are judged by their parts: `flatten` of a contiguous tensor is a view, of another tensor a copy. Use the
    guard around `Engine.tick`, or around a stage worker's, on any device:

        with LaunchGuard(device):
            while engine.tick():
                pass

    A stage that breaks the rule fails its batch and retries it request by request, possibly without a further error, or it is
    closed. So the guard raises AssertionError at its end if either happened (`no_retries`). On the CPU `tolist` and `numpy` read a
    tensor without any operation, so the guard does not see them; on a GPU they copy first.

    operations: number of operations seen inside phases, to show that the guard was active. launched: the phases of these
    operations.
    """

    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device = device
        self.operations = 0
        self.launched: set[str] = set()
        self._no_retries = ExitStack()

    def __enter__(self) -> "LaunchGuard":
        self._no_retries.enter_context(no_retries())
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._no_retries.__exit__(kind, error, trace)

    def operate(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
        if self._device.launching is not None:
            self.operations += 1
            self.launched.add(self._device.launching)
            return func(*args, **kwargs)
        operation = describe(func)
        if operation.nature is Nature.VIEW:
            return func(*args, **kwargs)
        parts = self.decompose(func, args, kwargs)
        if parts is NotImplemented:
            raise AssertionError(f"torch.{operation.name} ran outside a phase: launch it through the device")
        return parts
