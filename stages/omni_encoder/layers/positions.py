"""Positions of tokens and patches. All are computed in float32, where they are used: a cast of the model would round a table.

Shape legend: C chunks, T tokens of a chunk, D width of a token, P patches, H heads, W width of a head, F = W / 4 frequencies.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_LONGEST = 10_000
"""Ratio of the longest wavelength to the shortest."""


def sinusoids(count: int, width: int, device: torch.device) -> Tensor:
    """Sinusoidal position embeddings (Vaswani et al., 2017), `[T, D]`, float32: sines, then cosines. width: even, at least 4."""
    step = math.log(_LONGEST) / (width // 2 - 1)
    frequencies = torch.exp(-step * torch.arange(width // 2, device=device).float())
    angles = torch.arange(count, device=device)[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def add_sinusoids(tokens_CTD: Tensor) -> Tensor:
    """The tokens of chunks, `[C, T, D]`, with the position embeddings of each chunk."""
    _, count, width = tokens_CTD.shape
    return tokens_CTD + sinusoids(count, width, tokens_CTD.device).to(tokens_CTD.dtype)


@dataclass(frozen=True, slots=True)
class PatchRotation:
    """Rotary position embedding (Su et al., 2021) in two dimensions: a quarter of a head turns with the row of its patch, the next
    with the column, and each is paired with its place in the other half. cos, sin: of the angles, float32 `[P, 1, W]`."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, positions_P2: Tensor, head_width: int, theta: float) -> "PatchRotation":
        """positions_P2: row and column of each patch. theta: base of the wavelengths."""
        half = head_width // 2
        exponents_F = torch.arange(0, half, 2, dtype=torch.float32, device=positions_P2.device) / half
        angles_P2F = positions_P2[..., None].float() * (1.0 / theta**exponents_F)
        return cls(_spread(angles_P2F.cos()), _spread(angles_P2F.sin()))

    def rotate(self, heads_PHW: Tensor) -> Tensor:
        """Computed in float32, and rounded to the dtype of `heads_PHW`."""
        exact_PHW = heads_PHW.float()
        low, high = exact_PHW.chunk(2, -1)
        rotated_PHW = exact_PHW * self.cos + torch.cat((-high, low), -1) * self.sin
        return rotated_PHW.to(heads_PHW.dtype)


def _spread(values_P2F: Tensor) -> Tensor:
    """`[P, 1, W]`: those of the row and of the column, for both halves of a head."""
    return values_P2F.flatten(1).repeat(1, 2)[:, None]
