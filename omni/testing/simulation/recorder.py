"""Sees every torch operation of a phase and tells the checker what it touches."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from omni.testing.simulation.checker import Checker
from omni.testing.simulation.operations import Nature, Operation, describe
from omni.testing.simulation.region import Selection
from omni.testing.simulation.shadow import key_of


class Recorder(TorchDispatchMode):
    """While entered, records this thread's operations. On the CPU `tolist` and `numpy` are none and pass unseen."""

    def __init__(self, checker: Checker) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._checker = checker
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
        operation = self._operations.get(id(func))
        if operation is None:
            operation = self._operations[id(func)] = describe(func)
        if operation.nature is Nature.VIEW:
            return func(*args, **kwargs)
        if operation.nature is Nature.COMPOSED:
            decompose: Callable[..., object] = func.decompose
            with self:
                return decompose(*args, **kwargs)
        result = func(*args, **kwargs)
        if operation.nature is Nature.PERHAPS_VIEW and _is_view(result, args[0]):
            return result
        self._record(operation, args, kwargs)
        if isinstance(result, Tensor):
            self._checker.made(result, operation.name)
        elif isinstance(result, tuple | list):
            for tensor in result:
                if isinstance(tensor, Tensor):
                    self._checker.made(tensor, operation.name)
        return result

    def _record(self, operation: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        written, name = operation.written, operation.name
        for position, argument in enumerate(args):
            if isinstance(argument, Tensor):
                chosen: Selection | None = None
                if position == 0 and operation.chosen is not None:
                    chosen = operation.chosen(args)
                self._checker.touch(argument, position in written, name, chosen)
            elif isinstance(argument, list | tuple):
                for tensor in argument:
                    if isinstance(tensor, Tensor):
                        self._checker.touch(tensor, position in written, name)
        for keyword, argument in kwargs.items():
            if isinstance(argument, Tensor):
                self._checker.touch(argument, keyword in written, name)


def _is_view(result: object, source: Tensor) -> bool:
    made = result[0] if isinstance(result, tuple | list) else result
    assert isinstance(made, Tensor)
    return key_of(made) == key_of(source)
