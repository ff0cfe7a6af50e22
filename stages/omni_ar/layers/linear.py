"""Linear maps: one, and several of one input, stacked: one matrix product where a checkpoint has several matrices."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from omni.checkpoint import Destination, StackedWeights
from omni_ar.kernels.linear import linear, linear_parts


class Linear(nn.Linear):
    """`nn.Linear` over `[T, inputs]`, by the kernel for a few rows where that is faster."""

    def forward(self, x_TD: Tensor) -> Tensor:
        """`[T, inputs]` to `[T, outputs]`."""
        return linear(x_TD, self.weight, self.bias)

    def in_parts(self, x_TD: Tensor) -> Tensor:
        """The same, or parts of it that the next norm adds up: see `linear_parts`."""
        return linear_parts(x_TD, self.weight, self.bias)


class StackedLinear(Linear, StackedWeights):
    """Rows of several published linear maps, one after another.

    parts: the published name of each (a sibling of this module) and its outputs, in order.
    """

    def __init__(
        self,
        inputs: int,
        parts: Mapping[str, int],
        *,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(inputs, sum(parts.values()), bias=bias, device=device, dtype=dtype)
        self.parts = dict(parts)

    def stacked_weights(self, name: str) -> dict[str, Destination]:
        """The parts' weights and biases are named as siblings of this module."""
        parent, prefix = name[: name.rfind(".") + 1], f"{name}." if name else ""
        destinations: dict[str, Destination] = {}
        start = 0
        for part, outputs in self.parts.items():
            for kind, _ in self.named_parameters(recurse=False):
                rows = slice(start, start + outputs)
                destinations[f"{parent}{part}.{kind}"] = Destination(f"{prefix}{kind}", (rows,))
            start += outputs
        return destinations
