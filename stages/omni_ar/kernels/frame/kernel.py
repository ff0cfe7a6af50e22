"""Attention within a codec frame in one launch: a program holds all keys of one row's key head in registers.

Shape legend: see the package; besides, h query heads of one key head, F = W / 2.
"""

import triton
import triton.language as tl
from torch import Tensor

from omni_ar.kernels.frame.attend import LEAST_F, LEAST_G, attend_row
from omni_ar.kernels.overlap import overlaps
from omni_ar.kernels.rope.norms import HeadNorms

_WARPS = 1


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
    rows, groups, kv_heads, head_dim = key_RGKW.shape
    y_THW = qkv_TX.new_empty(qkv_TX.shape[0], num_heads, head_dim)
    query_W, key_W, eps = (qkv_TX, qkv_TX, 0.0) if norms is None else norms
    _attend_frame[(rows, kv_heads)](
        qkv_TX,
        query_W,
        key_W,
        eps,
        cos_GW,
        sin_GW,
        start,
        key_RGKW,
        value_RGKW,
        y_THW,
        qkv_TX.stride(0),
        cos_GW.stride(0),
        head_dim**-0.5,
        COUNT=qkv_TX.shape[0] // rows,
        NORM=norms is not None,
        GROUPS=groups,
        HEADS=num_heads,
        KV_HEADS=kv_heads,
        HALF=head_dim // 2,
        OVERLAP=overlaps(qkv_TX),
        BLOCK_H=triton.next_power_of_2(num_heads // kv_heads),
        BLOCK_G=max(triton.next_power_of_2(groups), LEAST_G),
        BLOCK_F=max(triton.next_power_of_2(head_dim // 2), LEAST_F),
        num_warps=_WARPS,
        launch_pdl=overlaps(qkv_TX),
    )
    return y_THW


@triton.jit(do_not_specialize=["start"])
def _attend_frame(
    qkv_ptr,
    query_weight_ptr,
    key_weight_ptr,
    eps,
    cos_ptr,
    sin_ptr,
    start,
    key_ptr,
    value_ptr,
    y_ptr,
    qkv_stride,
    table_stride,
    scale,
    COUNT: tl.constexpr,
    NORM: tl.constexpr,
    GROUPS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    OVERLAP: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    attend_row(
        tl.program_id(0).to(tl.int64), tl.program_id(1), qkv_ptr, query_weight_ptr, key_weight_ptr, eps, cos_ptr,
        sin_ptr, start, key_ptr, value_ptr, y_ptr, qkv_stride, table_stride, scale, COUNT, NORM, GROUPS, HEADS, KV_HEADS,
        HALF, BLOCK_H, BLOCK_G, BLOCK_F,
    )  # fmt: skip
