"""Torch dispatch modes that observe operations, and one that counts memory: for the meta device and devices without allocator
statistics."""

import weakref
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


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


class AllocationCount(OperatorMode):
    """While entered, counts the bytes of every storage that this thread's torch operations allocate on one device. live: bytes that
    still exist. peak: their maximum. Memory that a kernel allocates internally is not counted."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._known: set[int] = set()
        self.live = 0
        self.peak = 0

    def operate(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
        # Intermediate tensors count too.
        made = self.decompose(func, args, kwargs)
        if made is not NotImplemented:
            return made
        given = {id(tensor.untyped_storage()) for tensor in self._tensors((args, kwargs))}
        made = func(*args, **kwargs)
        for tensor in self._tensors(made):
            self._add(tensor.untyped_storage(), given)
        return made

    def _tensors(self, tree: object) -> list[Tensor]:
        return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor) and leaf.device == self._device]

    def _add(self, storage: torch.UntypedStorage, given: set[int]) -> None:
        key, size = id(storage), storage.nbytes()
        if key in given or key in self._known:  # a view or an in-place operation
            return
        self._known.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._remove, key, size).atexit = False

    def _remove(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size
