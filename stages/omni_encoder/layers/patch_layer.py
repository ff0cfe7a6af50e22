"""A transformer layer over patches. Shape legend: P patches, D width of a patch's state."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from omni_encoder.layers.activations import ACTIVATIONS
from omni_encoder.layers.patch_attention import PatchAttention
from omni_encoder.layers.positions import PatchRotation
from omni_encoder.segments import Segments


class RMSNorm(nn.Module):
    """Root-mean-square normalization (Zhang and Sennrich, 2019), in float32 for every dtype, as in training."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        exact = x.float()
        normed = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * normed.to(x.dtype)


class PatchMLP(nn.Module):
    """activation: a name in `ACTIVATIONS`."""

    def __init__(self, width: int, inner: int, activation: str) -> None:
        super().__init__()
        self._activation = ACTIVATIONS[activation]
        self.linear_fc1 = nn.Linear(width, inner)
        self.linear_fc2 = nn.Linear(inner, width)

    def forward(self, x_PD: Tensor) -> Tensor:
        output_PD: Tensor = self.linear_fc2(self._activation(self.linear_fc1(x_PD)))
        return output_PD


class GatedPatchMLP(nn.Module):
    """A gated feed-forward layer (Shazeer, 2020), with biases. activation: a name in `ACTIVATIONS`, of the gate."""

    def __init__(self, width: int, inner: int, activation: str) -> None:
        super().__init__()
        self._activation = ACTIVATIONS[activation]
        self.gate_proj = nn.Linear(width, inner)
        self.up_proj = nn.Linear(width, inner)
        self.down_proj = nn.Linear(inner, width)

    def forward(self, x_PD: Tensor) -> Tensor:
        output_PD: Tensor = self.down_proj(self._activation(self.gate_proj(x_PD)) * self.up_proj(x_PD))
        return output_PD


class PatchLayer(nn.Module):
    """Norm and attention, norm and feed-forward layer, each added to its input."""

    def __init__(self, norm: Callable[[], nn.Module], attention: PatchAttention, mlp: nn.Module) -> None:
        super().__init__()
        self.norm1 = norm()
        self.norm2 = norm()
        self.attn = attention
        self.mlp = mlp

    def forward(self, x_PD: Tensor, rotation: PatchRotation, segments: Segments) -> Tensor:
        """`[P, D]` to the same shape."""
        x_PD = x_PD + self.attn(self.norm1(x_PD), rotation, segments)
        added_PD: Tensor = self.mlp(self.norm2(x_PD))
        return x_PD + added_PD
