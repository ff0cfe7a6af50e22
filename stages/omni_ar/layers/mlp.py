"""The gated feed-forward layer (SwiGLU; Shazeer, 2020, arXiv:2002.05202), and a plain projection between two widths."""

import torch
from torch import Tensor, nn

from omni_ar.kernels.linear import gated_linear
from omni_ar.layers.linear import Linear, StackedLinear
from omni_ar.layers.norm import RMSNorm


class GatedMLP(nn.Module):
    """`down_proj(silu(gate_proj(x)) * up_proj(x))`, without biases. Gate and up are stacked in `gate_up_proj`."""

    def __init__(
        self,
        width: int,
        intermediate: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        parts = {"gate_proj": intermediate, "up_proj": intermediate}
        self.gate_up_proj = StackedLinear(width, parts, device=device, dtype=dtype)
        self.down_proj = Linear(intermediate, width, bias=False, device=device, dtype=dtype)

    def forward(self, x_TD: Tensor) -> Tensor:
        """`[T, D]` to `[T, D]`."""
        y_TD: Tensor = self.down_proj(gated_linear(x_TD, self.gate_up_proj.weight, prefetch=self.down_proj.weight))
        return y_TD

    def fused_mlp(self, norm: RMSNorm, x_TD: Tensor, delta_TD: Tensor | None) -> tuple[Tensor, Tensor]:
        """Adds `delta_TD` to the residual stream, then applies norm and MLP. Returns the output and the stream, both
        `[T, D]`.

        delta_TD and the output may be in parts (`residual_sum`).
        """
        active_TI, x_TD = norm.norm_linear(
            self.gate_up_proj, x_TD, delta_TD, gated=True, prefetch=self.down_proj.weight
        )
        return self.down_proj.in_parts(active_TI), x_TD


class Projection(nn.Module):
    """Maps the width of one model to that of another: `linear_fc2(silu(linear_fc1(x)))`, with biases."""

    def __init__(self, width: int, inner: int, out: int, *, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.linear_fc1 = Linear(width, inner, device=device, dtype=dtype)
        self.linear_fc2 = Linear(inner, out, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., width]` to `[..., out]`."""
        projected: Tensor = self.linear_fc2(nn.functional.silu(self.linear_fc1(x)))
        return projected
