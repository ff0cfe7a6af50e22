"""Holds the rule that device memory is touched only inside phases."""

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
"""Operations that never read, write or allocate tensor memory: they make another tensor over the same."""


class LaunchGuard(TorchDispatchMode):
    """While entered, a torch operation of this thread outside a phase of `device` raises AssertionError.

    Making views is allowed. Operations composed of others are judged by their parts: `flatten` of a contiguous tensor is a
    view, of another one a copy. Use it around `Engine.tick`, or around a stage worker's, on any device:

        with LaunchGuard(device):
            while engine.tick():
                pass

    A stage that is found out so fails its batch and runs it again, request by request, where nothing may be found any more: at its
    end the guard raises AssertionError if a stage did that (`no_retries`).

    On the CPU `tolist` and `numpy` read a tensor without any operation, so they pass unseen; on a GPU they copy first.

    operations: how many were seen inside phases, to show that the guard was awake. launched: the phases they were in.
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
        # In inference mode composed operations arrive whole.
        decompose: Callable[..., object] = func.decompose
        super().__enter__()  # type: ignore[no-untyped-call]
        try:
            return decompose(*args, **kwargs)
        finally:
            super().__exit__(None, None, None)  # type: ignore[no-untyped-call]
