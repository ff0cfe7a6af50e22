"""Root mean square normalization (Zhang and Sennrich, 2019, arXiv:1910.07467)."""

from typing import Unpack

import torch
from torch import Tensor, nn

from omni_ar.kernels.linear import norm_linear
from omni_ar.kernels.norm import add_rms_norm, rms_norm
from omni_ar.layers.linear import Factory


class RMSNorm(nn.Module):
    """Normalizes the last dimension in fp32 and scales it by `weight` `[width]`."""

    def __init__(self, width: int, eps: float, **factory: Unpack[Factory]) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width, **factory))

    def forward(self, x: Tensor) -> Tensor:
        """`[..., width]` to the same shape and dtype."""
        return rms_norm(x, self.weight, self.eps)

    def add(self, x_TD: Tensor, delta_TD: Tensor | None) -> tuple[Tensor, Tensor]:
        """Adds `delta_TD` to the residual stream, possibly in parts (`residual_sum`). Returns the norm of the sum, and the sum,
        `[T, D]` each."""
        if delta_TD is None:
            return self(x_TD), x_TD
        return add_rms_norm(x_TD, delta_TD, self.weight, self.eps)

    def norm_linear(
        self,
        linear: nn.Linear,
        x_TD: Tensor,
        delta_TD: Tensor | None,
        *,
        gated: bool = False,
        prefetch: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """As `add`, followed by `linear`: returns `[T, outputs]` and the stream. gated: the map's outputs are gate, then up, and
        the result is `silu(gate) * up`. prefetch: the next product's weight."""
        return norm_linear(
            x_TD, delta_TD, self.weight, self.eps, linear.weight, linear.bias, gated=gated, prefetch=prefetch
        )
