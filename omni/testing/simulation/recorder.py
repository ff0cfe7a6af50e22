"""Observes every torch operation of a phase, and the bytes that its Triton kernels load and store, for the checker.

Kernels are observed under Triton's interpreter: torch sees no operation in them. Compiled kernels cannot be observed.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.device.allocations import OperatorMode
from omni.testing.simulation.checker import Checker
from omni.testing.simulation.operations import Nature, Operation, describe
from omni.testing.simulation.shadow import Selection, key_of

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
        self.kernel: _Kernel | None = None
        """The running kernel: torch's operations are then the interpreter's own."""

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
            kernel = self.kernel = _Kernel(executor.fn.__name__)
            for value in (*args, *kwargs.values()):
                kernel.add(value)
            try:
                call(executor, *args, **kwargs)
                kernel.report(self._touch)
            finally:
                self.kernel = None

        return run

    def _accesses(self, builder: Any) -> dict[str, Callable[..., Any]]:
        """The interpreter's functions for memory access; all its other accesses use these."""

        def observed(name: str, pointers: int, mask: int | None, writes: bool) -> Callable[..., Any]:
            """pointers, mask: positions of these arguments."""
            access = getattr(type(builder), name)

            def run(*args: Any, **options: Any) -> Any:
                if self.kernel is not None:
                    self.kernel.access(args[pointers], None if mask is None else args[mask], writes)
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
    return _interpreter().TensorDescriptor, sys.modules["triton.runtime.jit"].TensorWrapper


class OperationRecorder(OperatorMode):
    """While entered, records this thread's operations. On the CPU `tolist` and `numpy` are none, and are not seen."""

    def __init__(self, checker: Checker) -> None:
        super().__init__()
        self._checker = checker
        self.kernels = KernelWatch(checker.touch)
        """Observes accesses that are not torch operations; entered together with this mode."""
        self._operations: dict[int, Operation] = {}
        """Keyed by id: hashing an overload takes longer than the rest of the work. Overloads are never freed."""

    def operate(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
        if self.kernels.kernel is not None:
            return func(*args, **kwargs)  # record the kernel's accesses, not its interpreter's
        operation = self._operations.get(id(func))
        if operation is None:
            operation = self._operations[id(func)] = describe(func)
        nature = operation.nature
        if nature is Nature.VIEW:
            return func(*args, **kwargs)
        if nature is Nature.COMPOSED:
            return self.decompose(func, args, kwargs)
        result = func(*args, **kwargs)
        if nature is Nature.PERHAPS_VIEW and _is_view(result, args[0]):
            return result
        if nature is not Nature.FRESH:
            self._record(operation, args, kwargs)
        if isinstance(result, Tensor):
            self._checker.made(result, operation.name)
        elif isinstance(result, tuple | list):
            for part in result:
                if isinstance(part, Tensor):
                    self._checker.made(part, operation.name)
        return result

    def _record(self, operation: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Records the accesses of an operation to its arguments: tensors, lists with tensors, or something else. Simulated tests
        spend most of their time here."""
        written, name, touch = operation.written_by(args), operation.name, self._checker.touch
        choose = operation.chosen
        for place, argument in (*enumerate(args), *kwargs.items()):
            if isinstance(argument, Tensor):
                chosen = None
                if choose is not None and place == 0:
                    if self._checker.made_by_running(argument):
                        continue  # its indices would be converted for nothing
                    chosen = choose(args)
                touch(argument, place in written, name, chosen)
            elif isinstance(argument, tuple | list):
                for part in argument:
                    if isinstance(part, Tensor):
                        touch(part, place in written, name)


def _is_view(result: object, source: Tensor) -> bool:
    made = result[0] if isinstance(result, tuple | list) else result
    assert isinstance(made, Tensor)
    return key_of(made) == key_of(source)
