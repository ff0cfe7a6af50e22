"""Counts memory by watching tensors come and go: for devices that keep no statistics of their own, and for the meta device."""

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class AllocationCount(TorchDispatchMode):
    """While entered, counts the bytes of every storage that this thread's torch operations make on one device.

    live: bytes made since then that still exist. peak: the most that existed at once. Memory that a kernel takes and gives back
    by itself is not seen.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self._known: set[int] = set()
        self.live = 0
        self.peak = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch would import its compiler, which takes longer than loading a small model, only to keep away from this class.
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: tuple[type, ...],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        # In inference mode composed operations arrive whole: what they hold between their parts counts too.
        decompose: Callable[..., object] = func.decompose
        with self:
            made = decompose(*args, **kwargs)
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
        if key in given or key in self._known:  # a view, or written in place
            return
        self._known.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._remove, key, size).atexit = False

    def _remove(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size
