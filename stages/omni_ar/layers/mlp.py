"""The gated feed-forward layer (SwiGLU; Shazeer, 2020, arXiv:2002.05202)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class GatedMLP(nn.Module):
    """`down_proj(silu(gate_proj(x)) * up_proj(x))`, without biases."""

    def __init__(
        self,
        width: int,
        intermediate: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, intermediate, bias=False, device=device, dtype=dtype)
        self.up_proj = nn.Linear(width, intermediate, bias=False, device=device, dtype=dtype)
        self.down_proj = nn.Linear(intermediate, width, bias=False, device=device, dtype=dtype)

    def forward(self, x_TD: Tensor) -> Tensor:
        """`[T, D]` to `[T, D]`."""
        y_TD: Tensor = self.down_proj(F.silu(self.gate_proj(x_TD)) * self.up_proj(x_TD))
        return y_TD
