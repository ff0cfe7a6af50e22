"""Attention within a codec frame in one launch: a program holds all keys of one row's query head in registers.

All tiles are `[4, F]`: keys and values of four positions each, and vectors as four equal rows. So all loads have one layout, in
which a warp holds a tile at once, and only sums move between threads.

Shape legend: see the package; besides, F = W / 2.
"""

import triton
import triton.language as tl
from torch import Tensor

from omni_ar.kernels.overlap import overlaps
from omni_ar.kernels.rope.norms import HeadNorms
from omni_frames.kernels.rotated import rotated

# No sum crosses warps, so none waits for another.
_WARPS = 1
# A thread has several products of every sum. The compiler would fuse a single product with the first addition across
# lanes, and the lanes' copies of the sum would differ by a rounding.
_LEAST_F = 64


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
    _attend_frame[(rows, num_heads)](
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
        BLOCKS=triton.next_power_of_2(triton.cdiv(groups, 4)),
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
    BLOCKS: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    """Programs of one key head each compute its new keys; the first of them stores these."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    WIDTH: tl.constexpr = 2 * HALF
    SHARE: tl.constexpr = HEADS // KV_HEADS
    kv_head = head // SHARE
    place_41 = tl.arange(0, 4)[:, None]
    pair_4F = tl.arange(0, BLOCK_F)[None, :] + place_41 * 0
    inside_4F = pair_4F < HALF
    once_4F = inside_4F & (place_41 == 0)
    query_4F, key_4F = head * WIDTH + pair_4F, (HEADS + kv_head) * WIDTH + pair_4F
    frame_4F = (row * GROUPS * KV_HEADS + kv_head) * WIDTH + pair_4F
    query_weight = _weights(query_weight_ptr + pair_4F, inside_4F, NORM, HALF)
    key_weight = _weights(key_weight_ptr + pair_4F, inside_4F, NORM, HALF)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    keys = ()
    values = ()
    for block in tl.static_range(BLOCKS):
        index_41 = 4 * block + place_41
        cached_4F = frame_4F + index_41 * (KV_HEADS * WIDTH)
        keys += (_halves(key_ptr + cached_4F, (index_41 < start) & inside_4F, HALF),)  # type: ignore[assignment]
        values += (_halves(value_ptr + cached_4F, (index_41 < start) & inside_4F, HALF),)  # type: ignore[assignment]
    for token in tl.static_range(COUNT):
        position = start + token
        source_ptr = qkv_ptr + (row * COUNT + token) * qkv_stride
        angle_4F = position * table_stride + pair_4F
        cos_4F = tl.load(cos_ptr + angle_4F, mask=inside_4F, other=0.0, volatile=True).to(tl.float32)
        sin_4F = tl.load(sin_ptr + angle_4F, mask=inside_4F, other=0.0, volatile=True).to(tl.float32)
        value = _halves(source_ptr + key_4F + KV_HEADS * WIDTH, inside_4F, HALF)
        query = _halves(source_ptr + query_4F, inside_4F, HALF)
        key = _halves(source_ptr + key_4F, inside_4F, HALF)
        query = _rotated(query, query_weight, cos_4F, sin_4F, eps, NORM, HALF)
        key = _rotated(key, key_weight, cos_4F, sin_4F, eps, NORM, HALF)
        keys, values = _with_token(keys, key, position, BLOCKS), _with_token(values, value, position, BLOCKS)
        first_1F, second_1F = _attended(query, keys, values, position, scale, BLOCKS, BLOCK_F)
        _store_halves(y_ptr + (row * COUNT + token) * (HEADS * WIDTH) + query_4F, (first_1F, second_1F), once_4F, HALF)
        new_4F = frame_4F + position * (KV_HEADS * WIDTH)
        if head % SHARE == 0:
            _store_halves(key_ptr + new_4F, key, once_4F, HALF)
            _store_halves(value_ptr + new_4F, value, once_4F, HALF)


@triton.jit
def _attended(query, keys, values, position, scale, BLOCKS: tl.constexpr, BLOCK_F: tl.constexpr):
    """Both halves of the attention output, `[1, F]`, over the positions up to `position`."""
    scores = ()
    for block in tl.static_range(BLOCKS):
        score_41 = (_products(query[0], keys[block][0]) + _products(query[1], keys[block][1])) * scale
        score_41 = tl.where(4 * block + tl.arange(0, 4)[:, None] <= position, score_41, -float("inf"))
        scores += (score_41,)  # type: ignore[assignment]
    top_41 = scores[0]  # type: ignore[misc]
    for block in tl.static_range(1, BLOCKS):
        top_41 = tl.maximum(top_41, scores[block])
    most_11 = tl.max(top_41, axis=0, keep_dims=True)
    total_41 = tl.zeros([4, 1], tl.float32)
    first_4F = tl.zeros([4, BLOCK_F], tl.float32)
    second_4F = tl.zeros([4, BLOCK_F], tl.float32)
    for block in tl.static_range(BLOCKS):
        weight_41 = tl.exp(scores[block] - most_11)
        total_41 += weight_41
        first_4F += weight_41 * values[block][0].to(tl.float32)
        second_4F += weight_41 * values[block][1].to(tl.float32)
    total_11 = tl.sum(total_41, axis=0, keep_dims=True)
    return tl.sum(first_4F, axis=0, keep_dims=True) / total_11, tl.sum(second_4F, axis=0, keep_dims=True) / total_11


@triton.jit
def _halves(source_4F, inside_4F, HALF: tl.constexpr):
    """Volatile loads keep their order: those of the query and key, which are needed first, are the last, so all are under way
    before one is waited for. The compiler moves others next to their use."""
    first_4F = tl.load(source_4F, mask=inside_4F, other=0.0, volatile=True)
    return first_4F, tl.load(source_4F + HALF, mask=inside_4F, other=0.0, volatile=True)


@triton.jit
def _store_halves(to_4F, halves, inside_4F, HALF: tl.constexpr):
    dtype = to_4F.dtype.element_ty
    tl.store(to_4F, tl.broadcast_to(halves[0].to(dtype), to_4F.shape), mask=inside_4F)
    tl.store(to_4F + HALF, tl.broadcast_to(halves[1].to(dtype), to_4F.shape), mask=inside_4F)


@triton.jit
def _weights(weight_4F, inside_4F, NORM: tl.constexpr, HALF: tl.constexpr):
    return _halves(weight_4F, inside_4F, HALF) if NORM else (0.0, 0.0)


@triton.jit
def _rotated(head, weight, cos_4F, sin_4F, eps, NORM: tl.constexpr, HALF: tl.constexpr):
    """Both halves of a head, normalized and rotated, rounded where separate operations would round."""
    dtype = head[0].dtype
    x_4F, y_4F = head[0].to(tl.float32), head[1].to(tl.float32)
    if NORM:
        scale_41 = tl.rsqrt(tl.sum(x_4F * x_4F + y_4F * y_4F, axis=1, keep_dims=True) / (2 * HALF) + eps)
        x_4F = (x_4F * scale_41 * weight[0].to(tl.float32)).to(dtype).to(tl.float32)
        y_4F = (y_4F * scale_41 * weight[1].to(tl.float32)).to(dtype).to(tl.float32)
    return rotated(x_4F, y_4F, cos_4F, sin_4F, dtype)


@triton.jit
def _with_token(blocks, token, position, BLOCKS: tl.constexpr):
    """Keys or values with those of one position replaced."""
    replaced = ()
    for block in tl.static_range(BLOCKS):
        here_41 = 4 * block + tl.arange(0, 4)[:, None] == position
        first_4F, second_4F = blocks[block]
        halves = (tl.where(here_41, token[0], first_4F), tl.where(here_41, token[1], second_4F))
        replaced += (halves,)  # type: ignore[assignment]
    return replaced


@triton.jit
def _products(query_4F, key_4F):
    return tl.sum(query_4F.to(tl.float32) * key_4F.to(tl.float32), axis=1, keep_dims=True)
