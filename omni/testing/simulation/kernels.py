"""Observes the bytes that Triton kernels load and store in phases under Triton's interpreter: torch sees no operation in them."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.testing.simulation.shadow import Selection

_INTERPRETER = "triton.runtime.interpreter"
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Touch = Callable[[Tensor, bool, str, Selection], None]
"""The signature of `Checker.touch`."""

_Kind = tuple[bool, int]
"""Whether the access writes, and the bytes of an element."""


@dataclass(slots=True)
class _Kernel:
    """A running kernel. accesses: addresses of elements, one program after the other."""

    name: str
    storages: dict[int, torch.UntypedStorage] = field(default_factory=dict)
    accesses: dict[_Kind, list[NDArray[np.uint64]]] = field(default_factory=dict)

    def add(self, value: Any) -> None:
        """Records the tensors of an argument."""
        if isinstance(value, Tensor):
            storage = value.untyped_storage()
            self.storages[storage.data_ptr()] = storage
        elif isinstance(value, tuple):
            for part in value:
                self.add(part)
        elif isinstance(value, _holders()):
            self.add(value.base)

    def access(self, pointers: Any, mask: Any, writes: bool) -> None:
        """pointers, mask: the interpreter's values; None masks nothing."""
        itemsize = np.dtype(_interpreter()._get_np_dtype(pointers.get_element_ty())).itemsize
        addresses = pointers.data
        if mask is not None:
            addresses = addresses[np.broadcast_to(mask.data.astype(bool), addresses.shape)]
        self.accesses.setdefault((writes, itemsize), []).append(np.unique(addresses))

    def report(self, touch: Touch) -> None:
        for (writes, itemsize), parts in self.accesses.items():
            addresses = np.unique(np.concatenate(parts))
            for start, storage in self.storages.items():
                inside = addresses[(addresses >= start) & (addresses < start + storage.nbytes())] - np.uint64(start)
                if inside.size:
                    self._report_part(touch, storage, writes, itemsize, inside.astype(np.int64))

    def _report_part(
        self, touch: Touch, storage: torch.UntypedStorage, writes: bool, itemsize: int, offsets: NDArray[np.int64]
    ) -> None:
        if (offsets % itemsize).any() or storage.nbytes() % itemsize:
            offsets, itemsize = (offsets[:, None] + np.arange(itemsize)).reshape(-1), 1
        items = torch.empty(0, dtype=_WORDS[itemsize])
        items.set_(storage, 0, (storage.nbytes() // itemsize,), (1,))
        touch(items, writes, self.name, (offsets // itemsize,))


class KernelWatch:
    """touch: called after each kernel, for every part of a storage that it loads, stores, or both."""

    def __init__(self, touch: Touch) -> None:
        self._touch = touch
        self._kernel: _Kernel | None = None

    @property
    def running(self) -> bool:
        """Whether a kernel runs: torch's operations are then the interpreter's own."""
        return self._kernel is not None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While entered, observes kernels. Free of cost while the interpreter is not loaded."""
        if _INTERPRETER not in sys.modules:
            yield
            return
        interpreter = _interpreter()
        executor, builder = interpreter.GridExecutor, interpreter.interpreter_builder
        call = executor.__call__
        executor.__call__ = self._called(call)
        accesses = self._accesses(builder)
        # Instance attributes of the only builder override its class's.
        vars(builder).update(accesses)
        try:
            yield
        finally:
            executor.__call__ = call
            for name in accesses:
                del vars(builder)[name]

    def _called(self, call: Callable[..., None]) -> Callable[..., None]:
        def run(executor: Any, *args: Any, **kwargs: Any) -> None:
            kernel = self._kernel = _Kernel(executor.fn.__name__)
            for value in (*args, *kwargs.values()):
                kernel.add(value)
            try:
                call(executor, *args, **kwargs)
                kernel.report(self._touch)
            finally:
                self._kernel = None

        return run

    def _accesses(self, builder: Any) -> dict[str, Callable[..., Any]]:
        """The interpreter's functions for memory access; all its other accesses use these."""

        def observed(name: str, pointers: int, mask: int | None, writes: bool) -> Callable[..., Any]:
            """pointers, mask: positions of these arguments."""
            access = getattr(type(builder), name)

            def run(*args: Any, **options: Any) -> Any:
                if self._kernel is not None:
                    self._kernel.access(args[pointers], None if mask is None else args[mask], writes)
                return access(builder, *args, **options)

            return run

        return {
            "create_masked_load": observed("create_masked_load", 0, 1, False),
            "create_masked_store": observed("create_masked_store", 0, 2, True),
            "create_atomic_cas": observed("create_atomic_cas", 0, None, True),
            "create_atomic_rmw": observed("create_atomic_rmw", 1, 3, True),
        }


def _interpreter() -> Any:
    return sys.modules[_INTERPRETER]


def _holders() -> tuple[Any, ...]:
    """Types of arguments that contain a tensor."""
    return _interpreter().TensorDescriptor, sys.modules["triton.runtime.jit"].TensorWrapper
