"""Rotary positions: the table of a batch, and a layer's operations on queries, keys and values before attention.

Shape legend: T tokens, P position axes, W head width, F = W / 2 frequencies, H query heads, K key and value heads, X = (H + 2K) W,
N blocks of B slots.
"""

import torch
from torch import Tensor

from omni.device.kernel_choice import runs_kernel
from omni_ar.kernels.rope import reference
from omni_ar.kernels.rope.norms import HeadNorms

__all__ = ["HeadNorms", "qk_norm_rope_write", "rotary_table"]


def rotary_table(
    positions_PT: Tensor, frequency_F: Tensor, axis_F: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of `position * frequency`, with angles in fp32: each `[T, W]` in `dtype`, the two halves of a
    row equal.

    positions_PT: int64. frequency_F: fp32. axis_F: int64, the axis whose position rotates each frequency; None for axis 0.
    """
    if not runs_kernel(positions_PT):
        return reference.rotary_table(positions_PT, frequency_F, axis_F, dtype)
    from omni_ar.kernels.rope import kernel

    return kernel.rotary_table(positions_PT, frequency_F, axis_F, dtype)


def qk_norm_rope_write(
    qkv_TX: Tensor,
    norms: HeadNorms | None,
    cos_TW: Tensor,
    sin_TW: Tensor,
    num_heads: int,
    key_NBKW: Tensor,
    value_NBKW: Tensor,
    slots_T: Tensor,
    *,
    prefetch: Tensor | None = None,
) -> Tensor:
    """Normalizes and rotates the queries and keys of `qkv_TX` (queries, keys, values), and stores keys and values in
    their slots.

    norms: None for models without head norms. cos_TW, sin_TW: as `rotary_table` returns them. key_NBKW, value_NBKW: one
    layer's contiguous pages, in the dtype of `qkv_TX`. slots_T: int64, slot s is offset s % B of block s // B; slots of
    the null block may repeat. prefetch: the next product's weight, contiguous. Returns the queries, `[T, H, W]`,
    contiguous.
    """
    if not runs_kernel(qkv_TX):
        return reference.qk_norm_rope_write(qkv_TX, norms, cos_TW, sin_TW, num_heads, key_NBKW, value_NBKW, slots_T)
    from omni_ar.kernels.rope import kernel

    return kernel.qk_norm_rope_write(qkv_TX, norms, cos_TW, sin_TW, num_heads, key_NBKW, value_NBKW, slots_T, prefetch)
