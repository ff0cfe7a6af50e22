"""Enforces the rule that device memory is accessed only inside phases."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from omni.device import Device
from omni.testing.retries import no_retries

_VIEWS = frozenset(
    {
        "alias",
        "as_strided",
        "detach",
        "diagonal",
        "expand",
        "permute",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "t",
        "transpose",
        "unbind",
        "unfold",
        "unsqueeze",
        "view",
        "view_as_complex",
        "view_as_real",
        "_unsafe_view",
    }
)
"""Operations that never read, write or allocate tensor memory: they return another tensor over the same storage."""


class LaunchGuard(TorchDispatchMode):
    """While entered, a torch operation of this thread outside a phase of `device` raises AssertionError.

    Views are allowed. Composite operations are judged by their parts: `flatten` of a contiguous tensor is a view, of
    another tensor a copy. Use the guard around `Engine.tick`, or around a stage worker's, on any device:

        with LaunchGuard(device):
            while engine.tick():
                pass

    A stage that breaks the rule fails its batch and retries it request by request, possibly without a further error. So
    the guard raises AssertionError at its end if a stage retried a batch (`no_retries`).

    On the CPU `tolist` and `numpy` read a tensor without any operation, so the guard does not see them; on a GPU they
    copy first.

    operations: number of operations seen inside phases, to show that the guard was active. launched: the phases of
    these operations.
    """

    def __init__(self, device: Device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
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

    def __torch_dispatch__(
        self,
        func: Any,
        types: tuple[type, ...],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if self._device.launching is not None:
            self.operations += 1
            self.launched.add(self._device.launching)
            return func(*args, **kwargs)
        name: str = func.overloadpacket.__name__
        if name in _VIEWS:
            return func(*args, **kwargs)
        parts = self._by_parts(func, args, kwargs)
        if parts is NotImplemented:
            raise AssertionError(f"torch.{name} ran outside a phase: launch it through the device")
        return parts

    def _by_parts(self, func: Any, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        # In inference mode composite operations arrive undivided.
        decompose: Callable[..., object] = func.decompose
        super().__enter__()  # type: ignore[no-untyped-call]
        try:
            return decompose(*args, **kwargs)
        finally:
            super().__exit__(None, None, None)  # type: ignore[no-untyped-call]
