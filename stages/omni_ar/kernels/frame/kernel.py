"""Attention within a codec frame in one launch: a program holds all keys of one row's key head in registers.

Shape legend: see the package; besides, h query heads of one key head, F = W / 2.
"""

import triton
import triton.language as tl
from torch import Tensor

from omni_ar.kernels.overlap import overlaps
from omni_ar.kernels.rope.norms import HeadNorms
from omni_ar.kernels.rope.turned import turned

_WARPS = 1
# A thread has several products of every sum. The compiler would fuse a single product with the first addition across
# lanes, and the lanes' copies of the sum would differ by a rounding.
_LEAST_G, _LEAST_F = 16, 64


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
        BLOCK_G=max(triton.next_power_of_2(groups), _LEAST_G),
        BLOCK_F=max(triton.next_power_of_2(head_dim // 2), _LEAST_F),
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
    row, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    WIDTH: tl.constexpr = 2 * HALF
    SHARE: tl.constexpr = HEADS // KV_HEADS
    pair_1F = tl.arange(0, BLOCK_F)[None, :]
    head_h1 = tl.arange(0, BLOCK_H)[:, None]
    index_G1 = tl.arange(0, BLOCK_G)[:, None]
    inside_1F = pair_1F < HALF
    inside_hF = (head_h1 < SHARE) & inside_1F
    query_hF = (kv_head * SHARE + head_h1) * WIDTH + pair_1F
    frame_1F = (row * GROUPS * KV_HEADS + kv_head) * WIDTH + pair_1F
    keys_GF = frame_1F + index_G1 * (KV_HEADS * WIDTH)
    for token in tl.static_range(COUNT):
        position = start + token
        source_ptr = qkv_ptr + (row * COUNT + token) * qkv_stride
        cos_1F = tl.load(cos_ptr + position * table_stride + pair_1F, mask=inside_1F, other=0.0).to(tl.float32)
        sin_1F = tl.load(sin_ptr + position * table_stride + pair_1F, mask=inside_1F, other=0.0).to(tl.float32)
        key_1F = (HEADS + kv_head) * WIDTH + pair_1F
        x_1F, y_1F = _turned_heads(
            source_ptr + key_1F, key_weight_ptr + pair_1F, inside_1F, inside_1F, cos_1F, sin_1F, eps, NORM, HALF
        )
        x_hF, y_hF = _turned_heads(
            source_ptr + query_hF, query_weight_ptr + pair_1F, inside_hF, inside_1F, cos_1F, sin_1F, eps, NORM, HALF
        )
        value_1F = source_ptr + key_1F + KV_HEADS * WIDTH
        v_1F, w_1F = tl.load(value_1F, mask=inside_1F, other=0.0), tl.load(value_1F + HALF, mask=inside_1F, other=0.0)
        new_1F = frame_1F + position * (KV_HEADS * WIDTH)
        tl.store(key_ptr + new_1F, x_1F, mask=inside_1F)
        tl.store(key_ptr + new_1F + HALF, y_1F, mask=inside_1F)
        tl.store(value_ptr + new_1F, v_1F, mask=inside_1F)
        tl.store(value_ptr + new_1F + HALF, w_1F, mask=inside_1F)

        first_hF, second_hF = _attended(
            x_hF, y_hF, x_1F, y_1F, v_1F, w_1F, key_ptr, value_ptr, keys_GF, position, scale, inside_1F, HALF, BLOCK_G
        )
        out_hF = y_ptr + (row * COUNT + token) * (HEADS * WIDTH) + query_hF
        tl.store(out_hF, first_hF.to(y_ptr.dtype.element_ty), mask=inside_hF)
        tl.store(out_hF + HALF, second_hF.to(y_ptr.dtype.element_ty), mask=inside_hF)
        if token + 1 < COUNT:
            # The next token reads values that other threads of this program stored.
            tl.debug_barrier()


@triton.jit
def _attended(
    x_hF, y_hF, x_1F, y_1F, v_1F, w_1F, key_ptr, value_ptr, keys_GF, position, scale, inside_1F,
    HALF: tl.constexpr,
    BLOCK_G: tl.constexpr,
):  # fmt: skip
    """Both halves of the attention output of the heads at `x_hF` and `y_hF`. Keys before `position` are read from
    memory; the token's own key is `x_1F`, `y_1F`, its value `v_1F`, `w_1F`."""
    index_G1 = tl.arange(0, BLOCK_G)[:, None]
    # The token's own key and value are in registers; the loads of earlier ones overlap with their use.
    before_GF = (index_G1 < position) & inside_1F
    score_hG = _products(x_hF, tl.load(key_ptr + keys_GF, mask=before_GF, other=0.0))
    score_hG += _products(y_hF, tl.load(key_ptr + keys_GF + HALF, mask=before_GF, other=0.0))
    own_h1 = tl.sum(x_hF.to(tl.float32) * x_1F.to(tl.float32), axis=1, keep_dims=True)
    own_h1 += tl.sum(y_hF.to(tl.float32) * y_1F.to(tl.float32), axis=1, keep_dims=True)
    index_1G = tl.arange(0, BLOCK_G)[None, :]
    score_hG = tl.where(index_1G == position, own_h1, score_hG) * scale
    score_hG = tl.where(index_1G <= position, score_hG, -float("inf"))
    weight_hG = tl.exp(score_hG - tl.max(score_hG, axis=1, keep_dims=True))
    weight_hG = weight_hG / tl.sum(weight_hG, axis=1, keep_dims=True)
    own_h1 = tl.sum(tl.where(index_1G == position, weight_hG, 0.0), axis=1, keep_dims=True)
    first_hF = _weighted(weight_hG, tl.load(value_ptr + keys_GF, mask=before_GF, other=0.0))
    second_hF = _weighted(weight_hG, tl.load(value_ptr + keys_GF + HALF, mask=before_GF, other=0.0))
    first_hF += own_h1 * v_1F.to(tl.float32)
    second_hF += own_h1 * w_1F.to(tl.float32)
    return first_hF, second_hF


@triton.jit
def _turned_heads(
    source_hF, weight_1F, inside_hF, inside_1F, cos_1F, sin_1F, eps, NORM: tl.constexpr, HALF: tl.constexpr
):
    """Both halves of the heads at `source_hF`, normalized and rotated, rounded where separate operations would
    round."""
    dtype = source_hF.dtype.element_ty
    x_hF = tl.load(source_hF, mask=inside_hF, other=0.0).to(tl.float32)
    y_hF = tl.load(source_hF + HALF, mask=inside_hF, other=0.0).to(tl.float32)
    if NORM:
        mean_h1 = tl.sum(x_hF * x_hF + y_hF * y_hF, axis=1, keep_dims=True) / (2 * HALF)
        scale_h1 = tl.rsqrt(mean_h1 + eps)
        x_weight_1F = tl.load(weight_1F, mask=inside_1F, other=0.0).to(tl.float32)
        y_weight_1F = tl.load(weight_1F + HALF, mask=inside_1F, other=0.0).to(tl.float32)
        x_hF = (x_hF * scale_h1 * x_weight_1F).to(dtype).to(tl.float32)
        y_hF = (y_hF * scale_h1 * y_weight_1F).to(dtype).to(tl.float32)
    return turned(x_hF, y_hF, cos_1F, sin_1F, dtype)


@triton.jit
def _products(x_hF, key_GF):
    return tl.sum(x_hF.to(tl.float32)[:, None, :] * key_GF.to(tl.float32)[None, :, :], axis=2)


@triton.jit
def _weighted(weight_hG, value_GF):
    return tl.sum(weight_hG[:, :, None] * value_GF.to(tl.float32)[None, :, :], axis=1)
