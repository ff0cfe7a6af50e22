"""The accesses of a torch operation, by its schema: reads, writes, rows selected by indices, or a mere view."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.testing.simulation.shadow import Selection

Arguments = tuple[Any, ...]


class Nature(Enum):
    """COMPOSED: of other operations, which are observed instead. PERHAPS_VIEW: a view or a copy. FRESH: a view of new memory."""

    COMPOSED = "composed"
    VIEW = "view"
    FRESH = "fresh"
    PERHAPS_VIEW = "perhaps a view"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Operation:
    """written: positions and names of the arguments that it writes; it reads all other tensors. trained: those that it writes too
    in training mode. chosen: selects the part of the tensor at position 0 that it accesses, from its arguments."""

    name: str
    nature: Nature
    written: frozenset[int | str]
    trained: "Trained | None"
    chosen: Callable[[Arguments], Selection | None] | None

    def written_by(self, args: Arguments) -> frozenset[int | str]:
        trained = self.trained
        return self.written | trained.written if trained is not None and args[trained.flag] else self.written


@dataclass(frozen=True, slots=True)
class Trained:
    """Statistics that an operation updates, unlike its schema. flag: position of the argument for training mode."""

    written: frozenset[int | str]
    flag: int


_WHOLE = frozenset(
    {
        "__and__",
        "__or__",
        "__xor__",
        "conv1d",
        "conv2d",
        "conv_transpose1d",
        "layer_norm",
        "linear",
        "log_softmax",
        "matmul",
        "rms_norm",
        "scaled_dot_product_attention",
        "softmax",
    }
)
"""Composite operations that read all of their arguments and make a new tensor: their parts reveal no more."""
_VIEWS = frozenset({"_unsafe_view"})
"""Views whose schemas do not declare them as such."""
_FRESH = frozenset({"lift", "lift_fresh"})
"""The last operation of `torch.tensor`: its argument is memory that no operation made."""
_SHAPED_IN_PLACE = frozenset(
    {"as_strided_", "detach_", "set_", "squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_"}
)
_TRAINED: Mapping[str, Trained] = {"native_batch_norm": Trained(frozenset({3, 4}), 5)}


def describe(func: Any) -> Operation:
    name: str = func.overloadpacket.__name__
    schema = func._schema
    written: set[int | str] = set()
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.add(argument.name if argument.kwarg_only else position)
    return Operation(name, _nature(func, name, written), frozenset(written), _TRAINED.get(name), _CHOSEN.get(name))


def _nature(func: Any, name: str, written: set[int | str]) -> Nature:
    if name in _SHAPED_IN_PLACE or name in _VIEWS:
        return Nature.VIEW
    if name in _FRESH:
        return Nature.FRESH
    if written or name in _WHOLE:
        return Nature.COMPOSED if written and _composed(func) else Nature.PLAIN
    aliased = any(result.alias_info is not None for result in func._schema.returns)
    if _composed(func):
        return Nature.PERHAPS_VIEW if aliased else Nature.COMPOSED
    return Nature.VIEW if aliased else Nature.PLAIN


def _composed(func: Any) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"))


def _numbers(index: Tensor) -> NDArray[Any]:
    numbers = index.numpy()
    # A byte mask: numpy would treat it as numbers.
    return numbers.astype(bool) if index.dtype == torch.uint8 else numbers


def _rows(args: Arguments) -> Selection | None:
    """`(self, dim, index, ...)`: whole rows along a dimension; a scalar as a whole."""
    tensor, dim, index = args[0], args[1], args[2]
    return (*(slice(None),) * (dim % tensor.dim()), _numbers(index)) if tensor.dim() else None


def _elements(args: Arguments) -> Selection | None:
    """`(self, dim, index, ...)`: one element per element of the index."""
    tensor, dim, index = args[0], args[1], args[2]
    if not tensor.dim() or not index.dim():
        return None
    places: list[Any] = list(np.ogrid[tuple(slice(size) for size in index.shape)])
    places[dim % tensor.dim()] = _numbers(index)
    return tuple(places)


def _indexed(args: Arguments) -> Selection:
    """`(self, indices, ...)`, as in indexing with brackets."""
    return tuple(slice(None) if index is None else _numbers(index) for index in args[1])


def _embedded(args: Arguments) -> Selection:
    return (_numbers(args[1]),)


_CHOSEN: Mapping[str, Callable[[Arguments], Selection | None]] = {
    "index_select": _rows,
    "index_copy_": _rows,
    "index_add_": _rows,
    "index_fill_": _rows,
    "gather": _elements,
    "scatter_": _elements,
    "scatter_add_": _elements,
    "scatter_reduce_": _elements,
    "index": _indexed,
    "_unsafe_index": _indexed,
    "index_put_": _indexed,
    "_index_put_impl_": _indexed,
    "embedding": _embedded,
}
