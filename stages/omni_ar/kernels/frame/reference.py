"""Attention within a codec frame in plain torch. Shape legend: see the package."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from omni_ar.kernels.rope.norms import HeadNorms
from omni_ar.kernels.rope.reference import qk_norm_rope_write


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
    rows, groups = key_RGKW.shape[:2]
    count = qkv_TX.shape[0] // rows
    end = start + count
    # Each row's frame is one page.
    slots_RG = torch.arange(rows * groups, device=qkv_TX.device).view(rows, groups)
    cos_TW, sin_TW = (table_GW[start:end].repeat(rows, 1) for table_GW in (cos_GW, sin_GW))
    slots_T = slots_RG[:, start:end].flatten()
    q_THW = qk_norm_rope_write(qkv_TX, norms, cos_TW, sin_TW, num_heads, key_RGKW, value_RGKW, slots_T)
    index_G = torch.arange(end, device=qkv_TX.device)
    y_RHnW = scaled_dot_product_attention(
        q_THW.unflatten(0, (rows, count)).transpose(1, 2),
        key_RGKW[:, :end].transpose(1, 2),
        value_RGKW[:, :end].transpose(1, 2),
        attn_mask=index_G <= index_G[start:, None] if count > 1 else None,
        enable_gqa=True,
    )
    return y_RHnW.transpose(1, 2).flatten(0, 1)
