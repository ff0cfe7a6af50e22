"""Rotary positions: a batch's table, and one launch per layer from the stacked projection to queries and pages.

Shape legend: see the package; besides, h heads of one program.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from omni_ar.kernels.overlap import overlaps
from omni_ar.kernels.prefetch import prefetch_bytes, prefetch_l2
from omni_ar.kernels.rope.norms import HeadNorms
from omni_frames.kernels.rotated import rotated

_TABLE_TOKENS = 4
_HEADS = 4


def rotary_table(
    positions_PT: Tensor, frequency_F: Tensor, axis_F: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    tokens, frequencies = positions_PT.shape[1], frequency_F.shape[0]
    cos_TW, sin_TW = torch.empty(2, tokens, 2 * frequencies, dtype=dtype, device=positions_PT.device).unbind(0)
    if tokens:
        _rotary_table[(triton.cdiv(tokens, _TABLE_TOKENS),)](
            positions_PT,
            frequency_F,
            frequency_F if axis_F is None else axis_F,
            cos_TW,
            sin_TW,
            tokens,
            positions_PT.stride(0),
            positions_PT.stride(1),
            AXES=axis_F is not None,
            FREQUENCIES=frequencies,
            OVERLAP=overlaps(positions_PT),
            BLOCK_T=_TABLE_TOKENS,
            BLOCK_F=triton.next_power_of_2(frequencies),
            launch_pdl=overlaps(positions_PT),
        )
    return cos_TW, sin_TW


@triton.jit(do_not_specialize=["tokens"])
def _rotary_table(
    positions_ptr,
    frequency_ptr,
    axis_ptr,
    cos_ptr,
    sin_ptr,
    tokens,
    axis_stride,
    token_stride,
    AXES: tl.constexpr,
    FREQUENCIES: tl.constexpr,
    OVERLAP: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    token_T1 = (tl.program_id(0).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T))[:, None]
    frequency_1F = tl.arange(0, BLOCK_F)[None, :]
    inside_1F = frequency_1F < FREQUENCIES
    inside_TF = (token_T1 < tokens) & inside_1F
    index_TF = token_T1 * token_stride + tl.zeros_like(frequency_1F)
    if AXES:
        index_TF += tl.load(axis_ptr + frequency_1F, mask=inside_1F, other=0) * axis_stride
    position_TF = tl.load(positions_ptr + index_TF, mask=inside_TF, other=0)
    angle_TF = position_TF.to(tl.float32) * tl.load(frequency_ptr + frequency_1F, mask=inside_1F, other=0.0)
    dtype = cos_ptr.dtype.element_ty
    cos_TF, sin_TF = tl.cos(angle_TF).to(dtype), tl.sin(angle_TF).to(dtype)
    out_TF = token_T1 * (2 * FREQUENCIES) + frequency_1F
    tl.store(cos_ptr + out_TF, cos_TF, mask=inside_TF)
    tl.store(cos_ptr + out_TF + FREQUENCIES, cos_TF, mask=inside_TF)
    tl.store(sin_ptr + out_TF, sin_TF, mask=inside_TF)
    tl.store(sin_ptr + out_TF + FREQUENCIES, sin_TF, mask=inside_TF)


def qk_norm_rope_write(
    qkv_TX: Tensor,
    norms: HeadNorms | None,
    cos_TW: Tensor,
    sin_TW: Tensor,
    num_heads: int,
    key_NBKW: Tensor,
    value_NBKW: Tensor,
    slots_T: Tensor,
    prefetch: Tensor | None = None,
) -> Tensor:
    tokens = qkv_TX.shape[0]
    kv_heads, head_dim = key_NBKW.shape[2:]
    q_THW = qkv_TX.new_empty(tokens, num_heads, head_dim)
    if tokens:
        query_W, key_W, eps = (qkv_TX, qkv_TX, 0.0) if norms is None else norms
        _qk_norm_rope_write[(tokens, triton.cdiv(num_heads + 2 * kv_heads, _HEADS))](
            qkv_TX,
            query_W,
            key_W,
            eps,
            cos_TW,
            sin_TW,
            slots_T,
            q_THW,
            key_NBKW,
            value_NBKW,
            q_THW if prefetch is None else prefetch,
            qkv_TX.stride(0),
            cos_TW.stride(0),
            NORM=norms is not None,
            HEADS=num_heads,
            KV_HEADS=kv_heads,
            HALF=head_dim // 2,
            PREFETCH_BYTES=prefetch_bytes(prefetch, tokens, overlaps(qkv_TX)),
            OVERLAP=overlaps(qkv_TX),
            BLOCK_H=_HEADS,
            BLOCK_F=triton.next_power_of_2(head_dim // 2),
            num_warps=2,
            # A fused multiply-add would round once where separate operations round twice.
            enable_fp_fusion=False,
            launch_pdl=overlaps(qkv_TX),
        )
    return q_THW


@triton.jit
def _qk_norm_rope_write(
    qkv_ptr,
    query_weight_ptr,
    key_weight_ptr,
    eps,
    cos_ptr,
    sin_ptr,
    slots_ptr,
    q_ptr,
    key_ptr,
    value_ptr,
    prefetch_ptr,
    qkv_stride,
    table_stride,
    NORM: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    PREFETCH_BYTES: tl.constexpr,
    OVERLAP: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        program = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
        prefetch_l2(prefetch_ptr, program, tl.num_programs(0) * tl.num_programs(1), PREFETCH_BYTES)
    token = tl.program_id(0).to(tl.int64)
    head_h1 = (tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H))[:, None]
    # Weights and tables are loaded for each head: in the layout of the heads, they need not move between threads.
    pair_hF = tl.arange(0, BLOCK_F)[None, :] + head_h1 * 0
    inside_hF = (head_h1 < HEADS + 2 * KV_HEADS) & (pair_hF < HALF)
    index_hF = head_h1 * (2 * HALF) + pair_hF
    x_weight_hF = inside_hF.to(tl.float32)
    y_weight_hF = x_weight_hF
    if NORM:
        weight_hF = tl.where(head_h1 < HEADS, query_weight_ptr, key_weight_ptr) + pair_hF
        x_weight_hF = tl.load(weight_hF, mask=inside_hF, other=0.0).to(tl.float32)
        y_weight_hF = tl.load(weight_hF + HALF, mask=inside_hF, other=0.0).to(tl.float32)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    # All loads precede the first store: the compiler would not move them before it.
    source_ptr = qkv_ptr + token * qkv_stride
    first_hF = tl.load(source_ptr + index_hF, mask=inside_hF, other=0.0)
    second_hF = tl.load(source_ptr + index_hF + HALF, mask=inside_hF, other=0.0)
    slot = tl.load(slots_ptr + token)
    cos_hF = tl.load(cos_ptr + token * table_stride + pair_hF, mask=inside_hF, other=0.0).to(tl.float32)
    sin_hF = tl.load(sin_ptr + token * table_stride + pair_hF, mask=inside_hF, other=0.0).to(tl.float32)

    is_query_hF = (head_h1 < HEADS) & inside_hF
    is_key_hF = (head_h1 >= HEADS) & (head_h1 < HEADS + KV_HEADS) & inside_hF
    is_value_hF = (head_h1 >= HEADS + KV_HEADS) & inside_hF
    page_hF = slot * (KV_HEADS * 2 * HALF) + index_hF
    # Values are copied unchanged.
    value_hF = page_hF - (HEADS + KV_HEADS) * 2 * HALF
    tl.store(value_ptr + value_hF, first_hF, mask=is_value_hF)
    tl.store(value_ptr + value_hF + HALF, second_hF, mask=is_value_hF)

    # Rounded wherever separate operations would store a tensor: after the norm, and after each of the four products.
    dtype = q_ptr.dtype.element_ty
    x_hF, y_hF = first_hF.to(tl.float32), second_hF.to(tl.float32)
    if NORM:
        mean_h1 = tl.sum(x_hF * x_hF + y_hF * y_hF, axis=1, keep_dims=True) / (2 * HALF)
        scale_h1 = tl.rsqrt(mean_h1 + eps)
        x_hF = (x_hF * scale_h1 * x_weight_hF).to(dtype).to(tl.float32)
        y_hF = (y_hF * scale_h1 * y_weight_hF).to(dtype).to(tl.float32)
    rotated_x_hF, rotated_y_hF = rotated(x_hF, y_hF, cos_hF, sin_hF, dtype)

    query_hF = token * (HEADS * 2 * HALF) + index_hF
    tl.store(q_ptr + query_hF, rotated_x_hF, mask=is_query_hF)
    tl.store(q_ptr + query_hF + HALF, rotated_y_hF, mask=is_query_hF)
    key_hF = page_hF - HEADS * 2 * HALF
    tl.store(key_ptr + key_hF, rotated_x_hF, mask=is_key_hF)
    tl.store(key_ptr + key_hF + HALF, rotated_y_hF, mask=is_key_hF)
