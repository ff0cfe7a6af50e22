"""Self-attention within codec frames of a few tokens, whose keys and values need no paged cache.

Shape legend: R rows, T tokens of a pass, D model width, G positions of a frame, K key and value heads, H query heads, W
head width, X = width of one token's queries, keys and values.
"""

from dataclasses import dataclass

from torch import Tensor

from omni_ar.kernels.frame import attend_frame
from omni_ar.layers.attention import AttentionProjections


@dataclass(frozen=True, slots=True)
class FrameCache:
    """Keys and values of one layer, for the current frames."""

    key_RGKW: Tensor
    value_RGKW: Tensor


class FrameAttention(AttentionProjections):
    """Causal self-attention within each row's frame, with rotary positions."""

    def forward(self, qkv_TX: Tensor, start: int, cos_GW: Tensor, sin_GW: Tensor, cache: FrameCache) -> Tensor:
        """Returns the pending addition to the residual stream, `[T, D]`, possibly in parts (`residual_sum`), for the
        output of `qkv_proj`.

        T = R * n: the n tokens of a row are adjacent, at positions `start` to `start + n - 1`; their keys and values
        are written into `cache`. cos_GW, sin_GW: from `RotaryEmbedding`, for positions 0 to G - 1.
        """
        attended_THW = attend_frame(
            qkv_TX, self.norms, cos_GW, sin_GW, start, self.num_heads, cache.key_RGKW, cache.value_RGKW
        )
        out_TD: Tensor = self.o_proj.in_parts(attended_THW.flatten(1))
        return out_TD
