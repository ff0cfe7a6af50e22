"""Root mean square normalization (Zhang and Sennrich, 2019, arXiv:1910.07467)."""

import torch
from torch import Tensor, nn

from omni_ar.kernels.linear import norm_linear
from omni_ar.kernels.norm import add_rms_norm, rms_norm


class RMSNorm(nn.Module):
    """Normalizes the last dimension in fp32 and scales it by `weight` `[width]`."""

    def __init__(
        self, width: int, eps: float, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """`[..., width]` to the same shape and dtype."""
        return rms_norm(x, self.weight, self.eps)

    def add(self, x_TD: Tensor, delta_TD: Tensor | None) -> tuple[Tensor, Tensor]:
        """The norm of a residual stream to which `delta_TD` is still to be added, and the stream with it: both `[T, D]`.

        delta_TD: may come in parts (`residual_sum`).
        """
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
        """As `add`, and `linear` of the norm: `[T, outputs]`, and the stream.

        gated: the map's outputs are gate, then up, and the result is `silu(gate) * up`. prefetch: the next product's weight.
        """
        return norm_linear(
            x_TD, delta_TD, self.weight, self.eps, linear.weight, linear.bias, gated=gated, prefetch=prefetch
        )
