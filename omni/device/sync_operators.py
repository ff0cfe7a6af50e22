"""Torch operations that make the host wait for the device, by operator and arguments."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

KEEP = "keep the value on the device (torch.where, index_select), or read it from a HostSlot once its event is done"
SIZE = "its result's shape depends on values: take one of fixed size and a mask, or give the size (`output_size`)"
COPY = "copy between the device and the pinned memory of a HostSlot, with non_blocking=True"

# By name, without the overload and the underscore of in-place variants.
_ALWAYS: Mapping[str, str] = {
    **dict.fromkeys(("_local_scalar_dense", "item", "is_nonzero", "equal", "allclose", "multinomial"), KEEP),
    **dict.fromkeys(("nonzero", "nonzero_numpy", "argwhere", "masked_select", "bincount", "_to_sparse"), SIZE),
    **dict.fromkeys(("_unique", "_unique2", "unique_dim", "unique_consecutive"), SIZE),
    **dict.fromkeys(("_pin_memory",), COPY),
}
_OVERLOADS: Mapping[tuple[str, str], str] = {("where", "default"): SIZE, ("index_fill", "int_Tensor"): KEEP}
_REPEAT = ("repeat_interleave", "Tensor")
_COPIES = ("_to_copy", "copy_")
_INDEXED = frozenset({"index", "index_put", "_index_put_impl", "_unsafe_index", "_unsafe_index_put"})
_MASKS = (torch.bool, torch.uint8)

READS: Mapping[Callable[..., object], str] = {
    Tensor.tolist: KEEP,
    Tensor.numpy: KEEP,
    Tensor.__array__: KEEP,
    Tensor.cpu: COPY,
}
"""Methods that copy a tensor's values to the host. On CPU tensors they run no operator."""

MAKES: frozenset[Callable[..., object]] = frozenset({torch.tensor, torch.as_tensor, torch.asarray})
"""Functions that create a tensor from host data. With a device argument they copy from pageable memory."""


@dataclass(frozen=True, slots=True)
class Operator:
    """Properties of an operator (`OpOverload`). waits: the remedy, if it always waits. by_arguments: whether waiting
    depends on the arguments. composite: made of other operators, which are checked instead."""

    name: str
    overload: str
    composite: bool
    waits: str | None
    by_arguments: bool

    @classmethod
    @cache
    def of(cls, func: Any) -> "Operator":
        _, name, overload = str(func).split(".")
        composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
        plain = name.removesuffix("_")
        waits = _ALWAYS.get(plain) or _OVERLOADS.get((plain, overload))
        by_arguments = plain in _INDEXED or (plain, overload) == _REPEAT or name in _COPIES
        return cls(name, overload, composite, waits, by_arguments)

    def remedy(self, args: tuple[Any, ...], kwargs: Mapping[str, object]) -> str | None:
        """The remedy if the host waits for the operator's device; None if it does not."""
        if self.waits is not None:
            return self.waits
        if self.name.removesuffix("_") in _INDEXED:
            masked = any(isinstance(index, Tensor) and index.dtype in _MASKS for index in tree_leaves(args[1]))
            return SIZE if masked else None
        if (self.name, self.overload) == _REPEAT:
            return SIZE if kwargs.get("output_size") is None else None
        return None

    def copied(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> "Copy | None":
        """The copy that the operator makes, if any."""
        if self.name == "_to_copy":
            source: Tensor = args[0]
            device = kwargs.get("device") or source.device
            return Copy(source, None, torch.device(device), bool(kwargs.get("non_blocking")))
        if self.name == "copy_":
            target: Tensor = args[0]
            blocking = not (args[2] if len(args) > 2 else kwargs.get("non_blocking"))
            return Copy(args[1], target, target.device, not blocking)
        return None


@dataclass(frozen=True, slots=True)
class Copy:
    """The tensors of a copy. target: None if torch allocates it."""

    source: Tensor
    target: Tensor | None
    device: torch.device
    non_blocking: bool

    @property
    def waits(self) -> bool:
        """Whether the copy is between host and CUDA device and makes the host wait."""
        host_to_device = self.source.device.type == "cpu"
        if host_to_device == (self.device.type == "cpu"):
            return False
        if not self.non_blocking:
            return True
        host = self.source if host_to_device else self.target
        return host is not None and not host.is_pinned()  # torch pins the targets that it allocates

    @property
    def waits_where_the_cpu_stands_in(self) -> bool:
        """As `waits`, on the CPU: host memory is shared with numpy, like a `HostSlot`."""
        if self.target is None or self.non_blocking:
            return False
        return self.source.untyped_storage().resizable() != self.target.untyped_storage().resizable()
