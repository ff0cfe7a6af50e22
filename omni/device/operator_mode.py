"""The base of torch dispatch modes that observe operations."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class OperatorMode(TorchDispatchMode):
    """While entered, passes every torch operation of this thread to `operate`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True would make torch import its compiler, and wrap the mode in a function that takes longer than the mode.
        return False

    @abstractmethod
    def operate(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
        """Runs `func(*args, **kwargs)`, an `OpOverload`, and returns its result."""

    def decompose(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
        """Passes the parts of a composite operation, undivided in inference mode, to `operate`. NotImplemented if it has none."""
        super().__enter__()  # type: ignore[no-untyped-call]
        try:
            return func.decompose(*args, **kwargs)
        finally:
            super().__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: tuple[type, ...], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        return self.operate(func, args, kwargs or {})
