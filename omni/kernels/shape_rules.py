"""The shapes of torch's results, without contents: for the operations that take the most time on meta tensors.

On the meta device torch decomposes some operations in Python, which takes a third of a millisecond for a linear map and several
for a normalization. A start records thousands of them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional, init
from torch.overrides import TorchFunctionMode


class ShapeRules(TorchFunctionMode):
    """While entered, results of the operations below are made by rules, if the first argument is on the meta device. Their shapes,
    types, and strides of dimensions larger than 1 are torch's. Arguments are taken to be valid. Other operations, and arguments
    that a rule does not cover, are left to torch."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        rule, given = _RULES.get(func), kwargs or {}
        # The functions of `torch.nn.init` give all arguments by name.
        if rule is not None and _is_meta(args[0] if args else given.get("tensor")):
            result = rule(*args, **given)
            if result is not None:
                return result
        return func(*args, **given)


def _is_meta(argument: Any) -> bool:
    if isinstance(argument, Tensor):
        return argument.is_meta
    return bool(argument) and isinstance(argument, tuple | list) and all(map(_is_meta, argument))


# Parameters have the names that torch gives them.
def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    x = input
    if x.dim() < 2 or weight.dim() != 2 or x.shape[-1] != weight.shape[1] or not x.is_contiguous():
        return None
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def _like(x: Tensor, *_: Any, inplace: bool = False, **__: Any) -> Tensor | None:
    return None if inplace or not x.is_contiguous() or not x.is_floating_point() else x.new_empty(x.shape)


def _pairwise(x: Tensor, other: Any, **_: Any) -> Tensor | None:
    y = other
    if not x.is_contiguous():
        return None
    if isinstance(y, Tensor):
        if y.dim() > x.dim() or any(own not in (1, size) for own, size in _last(y.shape, x.shape)):
            return None  # the result is larger than x
    elif not isinstance(y, int | float):
        return None
    return torch.empty_like(x, dtype=torch.result_type(x, y))


def _last(shape: Sequence[int], whole: Sequence[int]) -> list[tuple[int, int]]:
    """The sizes of `shape` with those of the last dimensions of `whole`."""
    return list(zip(reversed(shape), reversed(whole), strict=False))


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor | None:
    if query.shape[:-2] != value.shape[:-2] or not query.dtype == key.dtype == value.dtype:
        return None
    return query.new_empty(*query.shape[:-1], value.shape[-1])


def _mean(x: Tensor, dim: Any = None, keepdim: bool = False, **given: Any) -> Tensor | None:
    if dim != -1 or not keepdim or given or not x.is_contiguous():
        return None
    return x.new_empty(*x.shape[:-1], 1)


def _cat(tensors: Sequence[Tensor], dim: int = 0, **given: Any) -> Tensor | None:
    first = tensors[0]
    alike = all(t.dtype == first.dtype and t.dim() == first.dim() and t.is_contiguous() for t in tensors)
    if given or not alike or not first.dim():
        return None
    shape = list(first.shape)
    shape[dim] = sum(t.shape[dim] for t in tensors)
    return first.new_empty(shape)


def _drawn(tensor: Tensor, *_: Any, **__: Any) -> Tensor:
    """Replaces draws in place, such as of initial weights: torch imports its compiler for them, which takes seconds."""
    return tensor


_ALIKE = ("square", "neg", "__neg__", "rsqrt")
_PAIRWISE = ("add", "__add__", "__radd__", "sub", "__sub__", "mul", "__mul__", "__rmul__")
_RULES: dict[Any, Callable[..., Tensor | None]] = {
    functional.linear: _linear,
    functional.layer_norm: _like,
    functional.gelu: _like,
    functional.silu: _like,
    functional.scaled_dot_product_attention: _attention,
    torch.rsqrt: _like,
    torch.cat: _cat,
    Tensor.mean: _mean,
    **dict.fromkeys((init.normal_, init.uniform_, init.kaiming_uniform_), _drawn),
    Tensor.normal_: _drawn,
    Tensor.uniform_: _drawn,
    **{getattr(Tensor, name): _like for name in _ALIKE},
    **{getattr(Tensor, name): _pairwise for name in _PAIRWISE},
}
