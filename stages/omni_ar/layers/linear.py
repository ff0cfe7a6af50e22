"""Linear maps: single ones, and stacks of several maps with the same input, computed as one matrix product."""

from collections.abc import Mapping
from typing import TypedDict, Unpack

import torch
from torch import Tensor, nn

from omni.checkpoint import Destination, StackedWeights
from omni_ar.kernels.linear import linear, linear_parts


class Factory(TypedDict, total=False):
    """Keyword arguments of every module: device and dtype of its parameters, as in `nn.Linear`."""

    device: torch.device | str | None
    dtype: torch.dtype | None


class Linear(nn.Linear):
    """`nn.Linear` over `[T, inputs]`, computed by the kernel for a few rows where that is faster."""

    def forward(self, x_TD: Tensor) -> Tensor:
        """Maps `[T, inputs]` to `[T, outputs]`."""
        return linear(x_TD, self.weight, self.bias)

    def in_parts(self, x_TD: Tensor) -> Tensor:
        """As `forward`, or in parts that the next norm adds up: see `linear_parts`."""
        return linear_parts(x_TD, self.weight, self.bias)


class StackedLinear(Linear, StackedWeights):
    """Rows of several published linear maps, one after another. parts: published name (a sibling of this module) and outputs of
    each."""

    def __init__(
        self,
        inputs: int,
        parts: Mapping[str, int],
        *,
        bias: bool = False,
        **factory: Unpack[Factory],
    ) -> None:
        super().__init__(inputs, sum(parts.values()), bias=bias, **factory)
        self.parts = dict(parts)

    def stacked_weights(self, name: str) -> dict[str, Destination]:
        parent, prefix = name[: name.rfind(".") + 1], f"{name}." if name else ""
        destinations: dict[str, Destination] = {}
        start = 0
        for part, outputs in self.parts.items():
            for kind, _ in self.named_parameters(recurse=False):
                rows = slice(start, start + outputs)
                destinations[f"{parent}{part}.{kind}"] = Destination(f"{prefix}{kind}", (rows,))
            start += outputs
        return destinations
