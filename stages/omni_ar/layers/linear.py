"""Linear maps and stacks of them, root mean square normalization (Zhang and Sennrich, 2019, arXiv:1910.07467), and the gated
feed-forward layer (SwiGLU; Shazeer, 2020, arXiv:2002.05202)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypedDict, Unpack

import torch
from torch import Tensor, nn

from omni.checkpoint import Cut, Destination, StackedWeights
from omni.parallel import Communicator
from omni_ar.kernels.linear import gated_linear, linear, linear_parts, norm_linear
from omni_ar.kernels.norm import Delta, PartialSum, add_rms_norm, rms_norm
from omni_ar.layers.parallel import communicator, width_cut


class FactoryKwargs(TypedDict, total=False):
    """Keyword arguments of every module: device and dtype of its parameters, as in `nn.Linear`."""

    device: torch.device | str | None
    dtype: torch.dtype | None


class Linear(nn.Linear):
    """`nn.Linear` over `[T, inputs]`, computed by the kernel for a few rows where that is faster."""

    def forward(self, x_TD: Tensor) -> Tensor:
        return linear(x_TD, self.weight, self.bias)

    def in_parts(self, x_TD: Tensor) -> Delta:
        """As `forward`, or in parts that the next norm adds up: see `linear_parts` and `PartialSum`."""
        return linear_parts(x_TD, self.weight, self.bias)


_NO_CUTS: Mapping[str, Cut] = MappingProxyType({})


class StackedLinear(Linear, StackedWeights):
    """Rows of several published linear maps, in order. parts: published name (a sibling of this module) and outputs of each. cuts:
    by name of the published map, the rows that this rank holds; without an entry, all rows."""

    def __init__(
        self,
        inputs: int,
        parts: Mapping[str, int],
        *,
        bias: bool = False,
        cuts: Mapping[str, Cut] = _NO_CUTS,
        **factory: Unpack[FactoryKwargs],
    ) -> None:
        held = {part: cuts[part].length if part in cuts else outputs for part, outputs in parts.items()}
        super().__init__(inputs, sum(held.values()), bias=bias, **factory)
        self.parts = held
        self._cuts = dict(cuts)

    def stacked_weights(self, name: str) -> dict[str, Destination]:
        parent, prefix = name[: name.rfind(".") + 1], f"{name}." if name else ""
        destinations: dict[str, Destination] = {}
        start = 0
        for part, outputs in self.parts.items():
            for kind, _ in self.named_parameters(recurse=False):
                rows = slice(start, start + outputs)
                destinations[f"{parent}{part}.{kind}"] = Destination(f"{prefix}{kind}", (rows,), self._cuts.get(part))
            start += outputs
        return destinations


class RowLinear(Linear, StackedWeights):
    """A linear map whose inputs are cut across ranks: each rank computes a partial sum of all outputs, and these are added up. The
    bias is whole, and added by rank 0 alone. columns: those of the published weight that this rank holds."""

    def __init__(
        self,
        columns: Cut,
        outputs: int,
        communicator: Communicator,
        *,
        bias: bool = False,
        **factory: Unpack[FactoryKwargs],
    ) -> None:
        super().__init__(columns.length, outputs, bias=bias, **factory)
        self._columns, self._communicator = columns, communicator

    def forward(self, x_TD: Tensor) -> Tensor:
        """`[T, D]`, the inputs of this rank, to all outputs."""
        return self._communicator.all_reduce(linear(x_TD, self.weight, self._own_bias))

    def in_parts(self, x_TD: Tensor) -> Delta:
        return PartialSum(linear_parts(x_TD, self.weight, self._own_bias), self._communicator)

    @property
    def _own_bias(self) -> Tensor | None:
        return self.bias if self._communicator.rank == 0 else None

    def stacked_weights(self, name: str) -> dict[str, Destination]:
        weight = f"{name}.weight" if name else "weight"
        return {weight: Destination(weight, cut=self._columns)}


def row_linear(
    columns: Cut | None, inputs: int, outputs: int, *, bias: bool = False, **factory: Unpack[FactoryKwargs]
) -> Linear:
    """A `RowLinear` of this rank's `columns`, or a whole map of `inputs` if there are none."""
    group = communicator()
    if columns is None or group is None:
        return Linear(inputs, outputs, bias=bias, **factory)
    return RowLinear(columns, outputs, group, bias=bias, **factory)


class RMSNorm(nn.Module):
    """Normalizes the last dimension in fp32 and scales it by `weight` `[width]`."""

    def __init__(self, width: int, eps: float, **factory: Unpack[FactoryKwargs]) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width, **factory))

    def forward(self, x: Tensor) -> Tensor:
        """`[..., width]` to the same shape and dtype."""
        return rms_norm(x, self.weight, self.eps)

    def add(self, x_TD: Tensor, delta_TD: Delta | None) -> tuple[Tensor, Tensor]:
        """Adds `delta_TD` to the residual stream, as `residual_sum` does. Returns the norm of the sum, and the sum,
        `[T, D]` each."""
        if delta_TD is None:
            return self(x_TD), x_TD
        return add_rms_norm(x_TD, delta_TD, self.weight, self.eps)

    def norm_linear(
        self,
        linear: nn.Linear,
        x_TD: Tensor,
        delta_TD: Delta | None,
        *,
        gated: bool = False,
        prefetch: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """As `add`, followed by `linear`: returns `[T, outputs]` and the stream. gated: the map's outputs are gate, then up, and
        the result is `silu(gate) * up`. prefetch: the next product's weight."""
        return norm_linear(
            x_TD, delta_TD, self.weight, self.eps, linear.weight, linear.bias, gated=gated, prefetch=prefetch
        )


class GatedMLP(nn.Module):
    """`down_proj(silu(gate_proj(x)) * up_proj(x))`, without biases. Gate and up are stacked in `gate_up_proj`. In a partition, each
    rank has a part of the intermediate width."""

    def __init__(self, width: int, intermediate: int, **factory: Unpack[FactoryKwargs]) -> None:
        super().__init__()
        parts, rows = {"gate_proj": intermediate, "up_proj": intermediate}, width_cut(intermediate, 0)
        self.is_cut = rows is not None
        cuts = dict.fromkeys(parts, rows) if rows is not None else _NO_CUTS
        self.gate_up_proj = StackedLinear(width, parts, cuts=cuts, **factory)
        self.down_proj = row_linear(width_cut(intermediate, 1), intermediate, width, **factory)

    def forward(self, x_TD: Tensor) -> Tensor:
        """`[T, D]` to `[T, D]`."""
        y_TD: Tensor = self.down_proj(gated_linear(x_TD, self.gate_up_proj.weight, prefetch=self.down_proj.weight))
        return y_TD

    def fused_mlp(self, norm: RMSNorm, x_TD: Tensor, delta_TD: Delta | None) -> tuple[Delta, Tensor]:
        active_TI, x_TD = norm.norm_linear(
            self.gate_up_proj, x_TD, delta_TD, gated=True, prefetch=self.down_proj.weight
        )
        return self.down_proj.in_parts(active_TI), x_TD


class Projection(nn.Module):
    """Maps the width of one model to that of another: `linear_fc2(silu(linear_fc1(x)))`, with biases."""

    def __init__(self, width: int, inner: int, out: int, **factory: Unpack[FactoryKwargs]) -> None:
        super().__init__()
        self.linear_fc1 = Linear(width, inner, **factory)
        self.linear_fc2 = Linear(inner, out, **factory)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., width]` to `[..., out]`."""
        projected: Tensor = self.linear_fc2(nn.functional.silu(self.linear_fc1(x)))
        return projected
