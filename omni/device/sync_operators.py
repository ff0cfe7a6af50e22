"""Which torch operations make the host wait for the device, told from the operation and its arguments."""

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

# By name, without overload and without the underscore of the variant in place.
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
"""Methods that bring a tensor's values to the host. Of a tensor on the CPU they are all that can be seen: no operation runs."""

MAKES: frozenset[Callable[..., object]] = frozenset({torch.tensor, torch.as_tensor, torch.asarray})
"""Functions that make a tensor of host data. Where a device is named, it is copied there from pageable memory."""


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator (`OpOverload`), as far as its name says. composite: made of others, which can be looked at instead.

    waits: what to do instead, if it always waits. by_arguments: whether it depends on them.
    """

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
        """What to do instead, if the host waits for the device that the operator works on; None if it does not."""
        if self.waits is not None:
            return self.waits
        if self.name.removesuffix("_") in _INDEXED:
            masked = any(isinstance(index, Tensor) and index.dtype in _MASKS for index in tree_leaves(args[1]))
            return SIZE if masked else None
        if (self.name, self.overload) == _REPEAT:
            return SIZE if kwargs.get("output_size") is None else None
        return None

    def copied(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> "Copy | None":
        """The copy that the operator is, if it is one."""
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
    """target: None if torch makes it."""

    source: Tensor
    target: Tensor | None
    device: torch.device
    non_blocking: bool

    @property
    def waits(self) -> bool:
        """Whether it goes between the host and a CUDA device, and the host waits for it."""
        host_to_device = self.source.device.type == "cpu"
        if host_to_device == (self.device.type == "cpu"):
            return False
        if not self.non_blocking:
            return True
        host = self.source if host_to_device else self.target
        return host is not None and not host.is_pinned()  # what torch makes for a copy to the host is pinned

    @property
    def waits_where_the_cpu_stands_in(self) -> bool:
        """The same between tensors that are all on the CPU: host memory is what numpy shares, as it does a `HostSlot`."""
        if self.target is None or self.non_blocking:
            return False
        return self.source.untyped_storage().resizable() != self.target.untyped_storage().resizable()
