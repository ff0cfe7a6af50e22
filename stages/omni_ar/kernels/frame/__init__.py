"""Attention within a codec frame: one short sequence per row, all of one length.

Shape legend: R rows, n new tokens of each row, T = R * n, G positions of a frame, H query heads, K key and value heads,
W head width, X = (H + 2K) W.
"""

from torch import Tensor

from omni.device.kernel_choice import runs_kernel
from omni_ar.kernels.frame import reference
from omni_ar.kernels.rope.norms import HeadNorms

__all__ = ["attend_frame"]


def attend_frame(
    qkv_TX: Tensor,
    norms: HeadNorms | None,
    cos_GW: Tensor,
    sin_GW: Tensor,
    start: int,
    num_heads: int,
    key_RGKW: Tensor,
    value_RGKW: Tensor,
) -> Tensor:
    """Normalizes and rotates queries and keys, stores keys and values at positions `start` to `start + n - 1`, and
    attends causally.

    qkv_TX: queries, keys, values of each token; a row's tokens are adjacent. cos_GW, sin_GW: from `rotary_table`, for
    positions 0 to G - 1. key_RGKW, value_RGKW: contiguous, of the dtype of `qkv_TX`. Returns `[T, H, W]`.
    """
    if not runs_kernel(qkv_TX):
        return reference.attend_frame(qkv_TX, norms, cos_GW, sin_GW, start, num_heads, key_RGKW, value_RGKW)
    from omni_ar.kernels.frame import kernel

    return kernel.attend_frame(qkv_TX, norms, cos_GW, sin_GW, start, num_heads, key_RGKW, value_RGKW)
