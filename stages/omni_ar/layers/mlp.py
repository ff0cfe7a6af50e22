"""The gated feed-forward layer (SwiGLU; Shazeer, 2020, arXiv:2002.05202), and a plain projection between two widths."""

from typing import Unpack

from torch import Tensor, nn

from omni_ar.kernels.linear import gated_linear
from omni_ar.layers.linear import Factory, Linear, StackedLinear
from omni_ar.layers.norm import RMSNorm


class GatedMLP(nn.Module):
    """`down_proj(silu(gate_proj(x)) * up_proj(x))`, without biases. Gate and up are stacked in `gate_up_proj`."""

    def __init__(self, width: int, intermediate: int, **factory: Unpack[Factory]) -> None:
        super().__init__()
        parts = {"gate_proj": intermediate, "up_proj": intermediate}
        self.gate_up_proj = StackedLinear(width, parts, **factory)
        self.down_proj = Linear(intermediate, width, bias=False, **factory)

    def forward(self, x_TD: Tensor) -> Tensor:
        """`[T, D]` to `[T, D]`."""
        y_TD: Tensor = self.down_proj(gated_linear(x_TD, self.gate_up_proj.weight, prefetch=self.down_proj.weight))
        return y_TD

    def fused_mlp(self, norm: RMSNorm, x_TD: Tensor, delta_TD: Tensor | None) -> tuple[Tensor, Tensor]:
        """See `FeedForward.fused_mlp`."""
        active_TI, x_TD = norm.norm_linear(
            self.gate_up_proj, x_TD, delta_TD, gated=True, prefetch=self.down_proj.weight
        )
        return self.down_proj.in_parts(active_TI), x_TD


class Projection(nn.Module):
    """Maps the width of one model to that of another: `linear_fc2(silu(linear_fc1(x)))`, with biases."""

    def __init__(self, width: int, inner: int, out: int, **factory: Unpack[Factory]) -> None:
        super().__init__()
        self.linear_fc1 = Linear(width, inner, **factory)
        self.linear_fc2 = Linear(inner, out, **factory)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., width]` to `[..., out]`."""
        projected: Tensor = self.linear_fc2(nn.functional.silu(self.linear_fc1(x)))
        return projected
