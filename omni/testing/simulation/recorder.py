"""Sees every torch operation of a phase and tells the checker what it touches."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from omni.testing.simulation.checker import Checker
from omni.testing.simulation.kernels import KernelWatch
from omni.testing.simulation.operations import Nature, Operation, describe
from omni.testing.simulation.shadow import key_of


class Recorder(TorchDispatchMode):
    """While entered, records this thread's operations. On the CPU `tolist` and `numpy` are none and pass unseen."""

    def __init__(self, checker: Checker) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._checker = checker
        self.kernels = KernelWatch(checker.touch)
        """Sees what is no operation of torch's; entered beside this."""
        self._operations: dict[int, Operation] = {}
        """By the overload's identity, since hashing it takes longer than all that is done with it here. Overloads live for ever."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # What torch wraps a mode in otherwise takes many times as long as what this one does.
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if self.kernels.running:
            return func(*args, **kwargs)  # what the kernel touches, not what its interpreter does for it
        operation = self._operations.get(id(func))
        if operation is None:
            operation = self._operations[id(func)] = describe(func)
        if operation.nature is Nature.VIEW:
            return func(*args, **kwargs)
        if operation.nature is Nature.FRESH:
            result = func(*args, **kwargs)
            self._made(operation, result)
            return result
        if operation.nature is Nature.COMPOSED:
            decompose: Callable[..., object] = func.decompose
            with self:
                return decompose(*args, **kwargs)
        result = func(*args, **kwargs)
        if operation.nature is Nature.PERHAPS_VIEW and _is_view(result, args[0]):
            return result
        self._record(operation, args, kwargs)
        self._made(operation, result)
        return result

    def _made(self, operation: Operation, result: object) -> None:
        for tensor in _tensors(result):
            self._checker.made(tensor, operation.name)

    def _record(self, operation: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        written, name = operation.written_by(args), operation.name
        for place, argument in (*enumerate(args), *kwargs.items()):
            chosen = operation.chosen(args) if place == 0 and operation.chosen is not None else None
            for tensor in _tensors(argument):
                self._checker.touch(tensor, place in written, name, chosen)


def _tensors(value: object) -> Iterator[Tensor]:
    """An argument or a result: a tensor, a list of them and of what is none, or something else."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        yield from (part for part in value if isinstance(part, Tensor))


def _is_view(result: object, source: Tensor) -> bool:
    made = result[0] if isinstance(result, tuple | list) else result
    assert isinstance(made, Tensor)
    return key_of(made) == key_of(source)
