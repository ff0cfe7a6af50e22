"""Rotary positions in plain torch. Shape legend: see the package."""

import torch
from torch import Tensor

from omni_ar.kernels.norm.reference import rms_norm
from omni_ar.kernels.rope.norms import HeadNorms


def rotary_table(
    positions_PT: Tensor, frequency_F: Tensor, axis_F: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    position_TF = positions_PT[0, :, None] if axis_F is None else positions_PT.index_select(0, axis_F).t()
    angle_TF = position_TF.float() * frequency_F
    cos_TF, sin_TF = angle_TF.cos().to(dtype), angle_TF.sin().to(dtype)
    return torch.cat((cos_TF, cos_TF), -1), torch.cat((sin_TF, sin_TF), -1)


def apply_rotary(x_THW: Tensor, cos_TW: Tensor, sin_TW: Tensor) -> Tensor:
    """Rotates the pairs (x[i], x[i + W/2]) of every head by the token's angles. Returns `[T, H, W]`."""
    first, second = x_THW.chunk(2, dim=-1)
    turned_THW = torch.cat((-second, first), -1)
    return x_THW * cos_TW[:, None] + turned_THW * sin_TW[:, None]


def qk_norm_rope_write(
    qkv_TX: Tensor,
    norms: HeadNorms | None,
    cos_TW: Tensor,
    sin_TW: Tensor,
    num_heads: int,
    key_NBKW: Tensor,
    value_NBKW: Tensor,
    slots_T: Tensor,
) -> Tensor:
    kv_heads, head_dim = key_NBKW.shape[2:]
    heads_TNW = qkv_TX.unflatten(-1, (-1, head_dim))
    q_THW, k_TKW, v_TKW = heads_TNW.split((num_heads, kv_heads, kv_heads), dim=1)
    if norms is not None:
        q_THW = rms_norm(q_THW, norms.query_W, norms.eps)
        k_TKW = rms_norm(k_TKW, norms.key_W, norms.eps)
    key_NBKW.flatten(0, 1).index_copy_(0, slots_T, apply_rotary(k_TKW, cos_TW, sin_TW))
    value_NBKW.flatten(0, 1).index_copy_(0, slots_T, v_TKW)
    return apply_rotary(q_THW, cos_TW, sin_TW)
