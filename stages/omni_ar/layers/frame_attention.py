"""Self-attention within codec frames: a few tokens each, whose keys and values need no paged cache.

Shape legend: R rows, T tokens of a pass, D model width, G positions of a frame, K key and value heads, H query heads, W head width,
X = queries, keys and values of one token.
"""

from dataclasses import dataclass

from torch import Tensor

from omni_ar.kernels.frame import attend_frame
from omni_ar.layers.attention import AttentionProjections


@dataclass(frozen=True, slots=True)
class FrameCache:
    """Keys and values of one layer, for the frames that are being made."""

    key_RGKW: Tensor
    value_RGKW: Tensor


class FrameAttention(AttentionProjections):
    """Causal attention of each row's frame to itself, with rotary positions. Arguments are those of `AttentionProjections`."""

    def room(self, hidden_RD: Tensor, positions: int) -> FrameCache:
        """An unwritten cache for frames of so many positions, for the rows, on the device and of the dtype of `hidden_RD`."""
        shape = (hidden_RD.shape[0], positions, self.num_kv_heads, self.head_dim)
        return FrameCache(hidden_RD.new_empty(shape), hidden_RD.new_empty(shape))

    def forward(self, qkv_TX: Tensor, start: int, cos_GW: Tensor, sin_GW: Tensor, cache: FrameCache) -> Tensor:
        """What `qkv_proj` gave, to what the residual stream is still to have added, `[T, D]`, maybe in parts (`residual_sum`).

        T = R * n: the n tokens of a row lie together, at positions `start` to `start + n - 1`; their keys and values are written
        into `cache`. cos_GW, sin_GW: as `RotaryEmbedding` gives them for positions 0 to G - 1.
        """
        attended_THW = attend_frame(
            qkv_TX, self.norms, cos_GW, sin_GW, start, self.num_heads, cache.key_RGKW, cache.value_RGKW
        )
        out_TD: Tensor = self.o_proj.in_parts(attended_THW.flatten(1))
        return out_TD
