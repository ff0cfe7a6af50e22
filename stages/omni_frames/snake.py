"""An activation of vocoders and of renderers."""

import torch
from torch import Tensor, nn


class SnakeBeta(nn.Module):
    """x + sin²(a x) / b, a and b learned per channel as logarithms (Ziyin et al., 2020; Lee et al., 2023)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, signal: Tensor) -> Tensor:
        """`[B, channels, ...]` to the same shape."""
        shape = (-1, *[1] * (signal.dim() - 2))
        frequency = self.alpha.exp().view(shape)
        magnitude = (self.beta.exp() + 1e-9).reciprocal().view(shape)
        return torch.addcmul(signal, magnitude, (signal * frequency).sin_().square_())
