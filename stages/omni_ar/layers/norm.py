"""Root mean square normalization (Zhang and Sennrich, 2019, arXiv:1910.07467)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
