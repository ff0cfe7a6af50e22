"""Torch's attention, over copies of the keys and values that a block sees. Shape legend: see the package."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def attend_blocks(
    qkv_UBKF3HW: Tensor, bias_N1FJ: Tensor, before_UBF2HW: Tensor | None, *, back: bool, ahead: bool
) -> Tensor:
    frames, heads = qkv_UBKF3HW.shape[3], qkv_UBKF3HW.shape[5]
    q_NHFW = qkv_UBKF3HW[..., 0, :, :].flatten(0, 2).transpose(1, 2)
    kv = qkv_UBKF3HW[..., 1:, :, :]
    parts = [kv]
    if back:
        first = kv[:, :, :1] if before_UBF2HW is None else before_UBF2HW[:, :, None]
        parts.insert(0, torch.cat((first, kv[:, :, :-1]), 2))
    if ahead:
        parts.append(torch.cat((kv[:, :, 1:], kv[:, :, :1]), 2))
    seen = torch.cat(parts, 3) if len(parts) > 1 else kv
    bias_N1FJ = bias_N1FJ[..., 0 if back else frames : (3 if ahead else 2) * frames]
    k_NHJW, v_NHJW = seen.flatten(0, 2).permute(2, 0, 3, 1, 4)
    attended = scaled_dot_product_attention(q_NHFW, k_NHJW, v_NHJW, attn_mask=bias_N1FJ.expand(-1, heads, -1, -1))
    return attended.transpose(1, 2)
