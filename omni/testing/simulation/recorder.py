"""Observes every torch operation of a phase and reports its accesses to the checker."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from omni.device.operator_mode import OperatorMode
from omni.testing.simulation.checker import Checker
from omni.testing.simulation.kernels import KernelWatch
from omni.testing.simulation.operations import Nature, Operation, describe
from omni.testing.simulation.shadow import key_of


class Recorder(OperatorMode):
    """While entered, records this thread's operations. On the CPU `tolist` and `numpy` are none, and are not seen."""

    def __init__(self, checker: Checker) -> None:
        super().__init__()
        self._checker = checker
        self.kernels = KernelWatch(checker.touch)
        """Observes accesses that are not torch operations; entered together with this mode."""
        self._operations: dict[int, Operation] = {}
        """Keyed by id: hashing an overload takes longer than the rest of the work. Overloads are never freed."""

    def operate(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
        if self.kernels.running:
            return func(*args, **kwargs)  # record the kernel's accesses, not its interpreter's
        operation = self._operations.get(id(func))
        if operation is None:
            operation = self._operations[id(func)] = describe(func)
        if operation.nature is Nature.VIEW:
            return func(*args, **kwargs)
        if operation.nature is Nature.COMPOSED:
            return self.decompose(func, args, kwargs)
        result = func(*args, **kwargs)
        if operation.nature is Nature.PERHAPS_VIEW and _is_view(result, args[0]):
            return result
        if operation.nature is not Nature.FRESH:
            self._record(operation, args, kwargs)
        for tensor in _tensors(result):
            self._checker.made(tensor, operation.name)
        return result

    def _record(self, operation: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        written, name = operation.written_by(args), operation.name
        for place, argument in (*enumerate(args), *kwargs.items()):
            chosen = operation.chosen(args) if place == 0 and operation.chosen is not None else None
            for tensor in _tensors(argument):
                self._checker.touch(tensor, place in written, name, chosen)


def _tensors(value: object) -> Iterator[Tensor]:
    """The tensors in an argument or a result: a tensor, a list with tensors, or something else."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        yield from (part for part in value if isinstance(part, Tensor))


def _is_view(result: object, source: Tensor) -> bool:
    made = result[0] if isinstance(result, tuple | list) else result
    assert isinstance(made, Tensor)
    return key_of(made) == key_of(source)
