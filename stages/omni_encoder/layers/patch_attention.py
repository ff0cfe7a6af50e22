"""Attention between patches of a picture. Shape legend: P patches, D width of a patch's state, H heads, W width of a head."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from omni_encoder.layers.positions import PatchRotation
from omni_encoder.segments import Segments


class PatchAttention(nn.Module, ABC):
    """Attention within segments, with rotary positions. Subclasses differ in the names of the projections."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self._scale = (width // heads) ** -0.5
        self.proj = nn.Linear(width, width)

    @abstractmethod
    def project(self, x_PD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each `[P, H, W]`."""

    def forward(self, x_PD: Tensor, rotation: PatchRotation, segments: Segments) -> Tensor:
        """`[P, D]` to the same shape."""
        q_PHW, k_PHW, v_PHW = self.project(x_PD)
        mixed_PHW = segments.attend(rotation.rotate(q_PHW), rotation.rotate(k_PHW), v_PHW, self._scale)
        output_PD: Tensor = self.proj(mixed_PHW.flatten(1))
        return output_PD


class FusedPatchAttention(PatchAttention):
    """One published matrix for queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.qkv = nn.Linear(width, 3 * width)

    def project(self, x_PD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q_PHW, k_PHW, v_PHW = self.qkv(x_PD).unflatten(1, (3, self.heads, -1)).unbind(1)
        return q_PHW, k_PHW, v_PHW


class SplitPatchAttention(PatchAttention):
    """A published matrix for each."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def project(self, x_PD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q_PHW, k_PHW, v_PHW = (part(x_PD).unflatten(1, (self.heads, -1)) for part in (self.q, self.k, self.v))
        return q_PHW, k_PHW, v_PHW
