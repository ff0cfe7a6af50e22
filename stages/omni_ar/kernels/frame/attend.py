"""Attention of one row's key head within its frame, for kernels.

Shape legend: see the package; besides, h query heads of one key head, F = W / 2.
"""

import triton
import triton.language as tl

from omni_ar.kernels.rope.turned import turned

# A thread has several products of every sum. The compiler would fuse a single product with the first addition across
# lanes, and the lanes' copies of the sum would differ by a rounding.
LEAST_G, LEAST_F = 16, 64
"""Minimum blocks of positions and of halves of a head."""


@triton.jit
def attend_row(
    row,
    kv_head,
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
    BLOCK_H: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    """The query heads of one key head, for the COUNT tokens of a row from position `start` on. row: int64."""
    WIDTH: tl.constexpr = 2 * HALF
    SHARE: tl.constexpr = HEADS // KV_HEADS
    pair_1F = tl.arange(0, BLOCK_F)[None, :]
    head_h1 = tl.arange(0, BLOCK_H)[:, None]
    inside_1F = pair_1F < HALF
    inside_hF = (head_h1 < SHARE) & inside_1F
    query_hF = (kv_head * SHARE + head_h1) * WIDTH + pair_1F
    frame_1F = (row * GROUPS * KV_HEADS + kv_head) * WIDTH + pair_1F
    keys_GF = frame_1F + tl.arange(0, BLOCK_G)[:, None] * (KV_HEADS * WIDTH)
    key_norm, query_norm = (), ()
    if NORM:
        key_norm = _halves(key_weight_ptr + pair_1F, inside_1F, HALF)
        query_norm = _halves(query_weight_ptr + pair_1F, inside_1F, HALF)
    for token in tl.static_range(COUNT):
        position = start + token
        source_ptr = qkv_ptr + (row * COUNT + token) * qkv_stride
        # All loads come first: behind the synchronization of a program of several warps, each would be waited for alone.
        # The token's own key and value are in registers; those of earlier tokens come from the cache.
        before_GF = (tl.arange(0, BLOCK_G)[:, None] < position) & inside_1F
        cos_1F = tl.load(cos_ptr + position * table_stride + pair_1F, mask=inside_1F, other=0.0).to(tl.float32)
        sin_1F = tl.load(sin_ptr + position * table_stride + pair_1F, mask=inside_1F, other=0.0).to(tl.float32)
        key_1F = source_ptr + (HEADS + kv_head) * WIDTH + pair_1F
        x_1F, y_1F = _halves(key_1F, inside_1F, HALF)
        x_hF, y_hF = _halves(source_ptr + query_hF, inside_hF, HALF)
        v_1F, w_1F = _halves(key_1F + KV_HEADS * WIDTH, inside_1F, HALF)
        keys = _halves(key_ptr + keys_GF, before_GF, HALF)
        values = _halves(value_ptr + keys_GF, before_GF, HALF)
        x_1F, y_1F = _turned_heads(x_1F, y_1F, key_norm, cos_1F, sin_1F, eps, NORM, HALF)
        x_hF, y_hF = _turned_heads(x_hF, y_hF, query_norm, cos_1F, sin_1F, eps, NORM, HALF)
        new_1F = frame_1F + position * (KV_HEADS * WIDTH)
        tl.store(key_ptr + new_1F, x_1F, mask=inside_1F)
        tl.store(key_ptr + new_1F + HALF, y_1F, mask=inside_1F)
        tl.store(value_ptr + new_1F, v_1F, mask=inside_1F)
        tl.store(value_ptr + new_1F + HALF, w_1F, mask=inside_1F)

        first_hF, second_hF = _attended(
            x_hF, y_hF, x_1F, y_1F, v_1F, w_1F, keys, values, position, scale, BLOCK_G
        )  # fmt: skip
        out_hF = y_ptr + (row * COUNT + token) * (HEADS * WIDTH) + query_hF
        tl.store(out_hF, first_hF.to(y_ptr.dtype.element_ty), mask=inside_hF)
        tl.store(out_hF + HALF, second_hF.to(y_ptr.dtype.element_ty), mask=inside_hF)
        if token + 1 < COUNT:
            # The next token reads values that other threads of this program stored.
            tl.debug_barrier()


@triton.jit
def _halves(source_ptr, inside, HALF: tl.constexpr):
    return tl.load(source_ptr, mask=inside, other=0.0), tl.load(source_ptr + HALF, mask=inside, other=0.0)


@triton.jit
def _attended(x_hF, y_hF, x_1F, y_1F, v_1F, w_1F, keys, values, position, scale, BLOCK_G: tl.constexpr):
    """Both halves of the attention output of the heads at `x_hF` and `y_hF`. keys, values: both halves `[G, F]` of those before
    `position`; the token's own key is `x_1F`, `y_1F`, its value `v_1F`, `w_1F`."""
    score_hG = _products(x_hF, keys[0]) + _products(y_hF, keys[1])
    own_h1 = tl.sum(x_hF.to(tl.float32) * x_1F.to(tl.float32), axis=1, keep_dims=True)
    own_h1 += tl.sum(y_hF.to(tl.float32) * y_1F.to(tl.float32), axis=1, keep_dims=True)
    index_1G = tl.arange(0, BLOCK_G)[None, :]
    score_hG = tl.where(index_1G == position, own_h1, score_hG) * scale
    score_hG = tl.where(index_1G <= position, score_hG, -float("inf"))
    weight_hG = tl.exp(score_hG - tl.max(score_hG, axis=1, keep_dims=True))
    weight_hG = weight_hG / tl.sum(weight_hG, axis=1, keep_dims=True)
    own_h1 = tl.sum(tl.where(index_1G == position, weight_hG, 0.0), axis=1, keep_dims=True)
    first_hF = _weighted(weight_hG, values[0]) + own_h1 * v_1F.to(tl.float32)
    second_hF = _weighted(weight_hG, values[1]) + own_h1 * w_1F.to(tl.float32)
    return first_hF, second_hF


@triton.jit
def _turned_heads(x_hF, y_hF, weights_1F, cos_1F, sin_1F, eps, NORM: tl.constexpr, HALF: tl.constexpr):
    """Both halves of heads, normalized and rotated, rounded where separate operations would round. weights_1F: of both."""
    dtype = x_hF.dtype
    x_hF, y_hF = x_hF.to(tl.float32), y_hF.to(tl.float32)
    if NORM:
        mean_h1 = tl.sum(x_hF * x_hF + y_hF * y_hF, axis=1, keep_dims=True) / (2 * HALF)
        scale_h1 = tl.rsqrt(mean_h1 + eps)
        x_weight_1F, y_weight_1F = weights_1F[0].to(tl.float32), weights_1F[1].to(tl.float32)
        x_hF = (x_hF * scale_h1 * x_weight_1F).to(dtype).to(tl.float32)
        y_hF = (y_hF * scale_h1 * y_weight_1F).to(dtype).to(tl.float32)
    return turned(x_hF, y_hF, cos_1F, sin_1F, dtype)


@triton.jit
def _products(x_hF, key_GF):
    return tl.sum(x_hF.to(tl.float32)[:, None, :] * key_GF.to(tl.float32)[None, :, :], axis=2)


@triton.jit
def _weighted(weight_hG, value_GF):
    return tl.sum(weight_hG[:, :, None] * value_GF.to(tl.float32)[None, :, :], axis=1)
