"""A program computes all query heads of one head of keys and values of a row, and then rewrites that head's part of the state.

No other program reads or writes the part, so that only the order within the program matters. A chunk has few queries, and a
window few keys: the keys of a tile are rotated anew for each tile of queries.

Shape legend: see the package; besides, m queries and n keys of a tile, f columns of half a head and e of a whole one, padded to
powers of two.
"""

import math
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from omni_frames.kernels.rotated import rotated
from omni_vocoder.kernels.window_attention.reference import AttentionInputs

_SMALLEST = 16
"""Smallest side of a matrix instruction."""


class WindowSettings(NamedTuple):
    """block_m: queries per tile. block_n: keys per tile, block_m or more."""

    block_m: int
    block_n: int
    num_warps: int = 4


def choose_settings(query_BTX: Tensor) -> WindowSettings:
    if query_BTX.dtype.itemsize > 2:
        # Without matrix units at this precision, operands are held in registers.
        return WindowSettings(block_m=16, block_n=32)
    return WindowSettings(block_m=16 if query_BTX.shape[1] <= 16 else 32, block_n=64)


def attend_window(
    query_BTX: Tensor,
    key_BTX: Tensor,
    value_BTX: Tensor,
    inputs: AttentionInputs,
    past_key_BKPE: Tensor,
    past_value_BKPE: Tensor,
    *,
    settings: WindowSettings,
) -> Tensor:
    """Launches the kernel. Arguments as for the package's function, which chooses the settings."""
    rows, positions, width = query_BTX.shape
    _, kv_heads, past, head_dim = past_key_BKPE.shape
    heads = width // head_dim
    out_BTX = query_BTX.new_empty(rows, positions, width)
    _attend_window[(rows, kv_heads)](
        query_BTX,
        key_BTX,
        value_BTX,
        inputs.cos_B1TE,
        inputs.sin_B1TE,
        inputs.before_B,
        past_key_BKPE,
        past_value_BKPE,
        out_BTX,
        positions,
        math.log2(math.e) / math.sqrt(head_dim),  # exp2 is the exponential that the hardware has
        query_BTX.stride(0),
        key_BTX.stride(0),
        value_BTX.stride(0),
        past_key_BKPE.stride(0),
        QUERY_STRIDE=query_BTX.stride(1),
        KEY_STRIDE=key_BTX.stride(1),
        VALUE_STRIDE=value_BTX.stride(1),
        HEADS=heads,
        GROUP=heads // kv_heads,
        PAST=past,
        HALF=head_dim // 2,
        BLOCK_M=settings.block_m,
        BLOCK_N=settings.block_n,
        BLOCK_F=max(triton.next_power_of_2(head_dim // 2), _SMALLEST),
        BLOCK_E=max(triton.next_power_of_2(head_dim), _SMALLEST),
        num_warps=settings.num_warps,
        num_stages=1,
    )
    return out_BTX


@triton.jit(do_not_specialize=["positions"])
def _attend_window(
    query_ptr,
    key_ptr,
    value_ptr,
    cos_ptr,
    sin_ptr,
    before_ptr,
    past_key_ptr,
    past_value_ptr,
    out_ptr,
    positions,
    scale,
    query_stride,
    key_stride,
    value_stride,
    past_stride,
    QUERY_STRIDE: tl.constexpr,
    KEY_STRIDE: tl.constexpr,
    VALUE_STRIDE: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PAST: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_F: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    WIDTH: tl.constexpr = 2 * HALF
    row, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    query_ptr += row * query_stride + kv_head * (GROUP * WIDTH)
    key_ptr += row * key_stride + kv_head * WIDTH
    value_ptr += row * value_stride + kv_head * WIDTH
    cos_ptr += row * positions * WIDTH
    sin_ptr += row * positions * WIDTH
    past_key_ptr += row * past_stride + kv_head * (PAST * WIDTH)
    past_value_ptr += row * past_stride + kv_head * (PAST * WIDTH)
    out_ptr += row * positions * (HEADS * WIDTH) + kv_head * (GROUP * WIDTH)
    # Keys are numbered from the first of the past on. Those before `begin` precede the stream, and are not read.
    begin = PAST - tl.minimum(tl.load(before_ptr + row), PAST).to(tl.int32)
    offset_m, offset_n = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)

    for task in range(GROUP * tl.cdiv(positions, BLOCK_M)):
        head, first_query = task % GROUP, task // GROUP * BLOCK_M
        live_m = first_query + offset_m < positions
        # Queries beyond the end are the last one, and are not written.
        query_m = tl.minimum(first_query + offset_m, positions - 1)
        q_low, q_high = _rotated(
            query_ptr + head * WIDTH + query_m * QUERY_STRIDE, cos_ptr + query_m * WIDTH, sin_ptr + query_m * WIDTH,
            live_m, HALF, BLOCK_F,
        )  # fmt: skip
        highest_m = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total_m = tl.zeros([BLOCK_M], tl.float32)
        sum_me = tl.zeros([BLOCK_M, BLOCK_E], tl.float32)
        end = PAST + tl.minimum(first_query + BLOCK_M, positions)
        # Each query sees a key of the first tile, which is as large as that of the queries: `highest_m` is finite after it.
        for first_key in range(tl.maximum(begin, first_query), end, BLOCK_N):
            index_n = first_key + offset_n
            k_low, k_high = _keys(
                key_ptr, past_key_ptr, cos_ptr, sin_ptr, index_n, positions, KEY_STRIDE, PAST, HALF, BLOCK_F
            )
            v_ne = _values(value_ptr, past_value_ptr, index_n, positions, VALUE_STRIDE, PAST, WIDTH, BLOCK_E)
            scores = tl.dot(q_low, tl.trans(k_low), input_precision="ieee")
            scores = tl.dot(q_high, tl.trans(k_high), scores, input_precision="ieee")
            distance = index_n[None, :] - query_m[:, None]
            scores = tl.where((distance >= 0) & (distance <= PAST), scores * scale, float("-inf"))
            higher_m = tl.maximum(highest_m, tl.max(scores, 1))
            shrink_m = tl.exp2(highest_m - higher_m)
            weights = tl.exp2(scores - higher_m[:, None])
            total_m = total_m * shrink_m + tl.sum(weights, 1)
            sum_me = tl.dot(weights.to(v_ne.dtype), v_ne, sum_me * shrink_m[:, None], input_precision="ieee")
            highest_m = higher_m
        out_m = out_ptr + head * WIDTH + query_m * (HEADS * WIDTH)
        _store(out_m, sum_me / total_m[:, None], live_m, WIDTH, BLOCK_E)

    # Key n + positions becomes key n of the past. The past is rewritten in place, from its start on: a tile is written after it has
    # been read. The barrier ensures that for all threads, and for the reads above. Later tiles read only entries after it, since
    # each reads entries after those that it writes.
    for first_key in range(0, PAST, BLOCK_N):
        kept_n = first_key + offset_n
        live_n = kept_n < PAST
        index_n = kept_n + positions
        k_low, k_high = _keys(
            key_ptr, past_key_ptr, cos_ptr, sin_ptr, index_n, positions, KEY_STRIDE, PAST, HALF, BLOCK_F
        )
        v_ne = _values(value_ptr, past_value_ptr, index_n, positions, VALUE_STRIDE, PAST, WIDTH, BLOCK_E)
        tl.debug_barrier()
        _store(past_key_ptr + kept_n * WIDTH, k_low, live_n, HALF, BLOCK_F)
        _store(past_key_ptr + kept_n * WIDTH + HALF, k_high, live_n, HALF, BLOCK_F)
        _store(past_value_ptr + kept_n * WIDTH, v_ne, live_n, WIDTH, BLOCK_E)


@triton.jit
def _keys(
    key_ptr,
    past_ptr,
    cos_ptr,
    sin_ptr,
    index_n,
    positions,
    STRIDE: tl.constexpr,
    PAST: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    """Halves of the rotated keys `index_n` of past and new ones; zeros after the last."""
    is_past_n, new_n = index_n < PAST, index_n - PAST
    is_new_n = (new_n >= 0) & (new_n < positions)
    new_low, new_high = _rotated(
        key_ptr + new_n * STRIDE, cos_ptr + new_n * (2 * HALF), sin_ptr + new_n * (2 * HALF), is_new_n, HALF, BLOCK_F
    )
    past_n = past_ptr + index_n * (2 * HALF)
    low = tl.where(is_past_n[:, None], _load(past_n, is_past_n, HALF, BLOCK_F), new_low)
    return low, tl.where(is_past_n[:, None], _load(past_n + HALF, is_past_n, HALF, BLOCK_F), new_high)


@triton.jit
def _values(
    value_ptr,
    past_ptr,
    index_n,
    positions,
    STRIDE: tl.constexpr,
    PAST: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    """As `_keys`, for values, which are whole and not rotated."""
    is_past_n, new_n = index_n < PAST, index_n - PAST
    new_ne = _load(value_ptr + new_n * STRIDE, (new_n >= 0) & (new_n < positions), WIDTH, BLOCK_E)
    return tl.where(is_past_n[:, None], _load(past_ptr + index_n * WIDTH, is_past_n, WIDTH, BLOCK_E), new_ne)


@triton.jit
def _rotated(head_n, cos_n, sin_n, live_n, HALF: tl.constexpr, BLOCK_F: tl.constexpr):
    """Halves of rotated heads, from pointers to them and to their tables, whose halves are equal; zeros in rows that are not
    live."""
    low, high = _load(head_n, live_n, HALF, BLOCK_F), _load(head_n + HALF, live_n, HALF, BLOCK_F)
    cos, sin = _load(cos_n, live_n, HALF, BLOCK_F).to(tl.float32), _load(sin_n, live_n, HALF, BLOCK_F).to(tl.float32)
    return rotated(low.to(tl.float32), high.to(tl.float32), cos, sin, low.dtype)


@triton.jit
def _load(at_n, live_n, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    inside = live_n[:, None] & (column < WIDTH)[None, :]
    return tl.load(at_n[:, None] + column[None, :], mask=inside, other=0.0)


@triton.jit
def _store(at_n, values, live_n, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    inside = live_n[:, None] & (column < WIDTH)[None, :]
    tl.store(at_n[:, None] + column[None, :], values.to(at_n.dtype.element_ty), mask=inside)
