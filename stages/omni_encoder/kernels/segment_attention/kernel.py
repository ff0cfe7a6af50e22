"""Attention within segments: a tile holds some positions of one head, and processes its segments one by one.

Keys are read from the start of their segment, not from a multiple of the tile size, and only within the segment. So a
result has the same bits wherever its segment is in a batch, and a NaN stays in its segment. A tile with several
segments computes all of its positions for each segment, and keeps those of that segment.

Heads whose width is not a power of two may be split into two parts, A and B: 72 is split into 64 and 16, instead of
padded to 128.

Shape legend: see the package; besides, M positions of a tile, N keys of a key tile.
"""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class SegmentSettings(NamedTuple):
    """block_m: positions per tile. block_n: keys per key tile. split: whether heads are split into two parts where that
    saves work."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    split: bool = True


def choose_settings(dtype: torch.dtype) -> SegmentSettings:
    """Settings for queries of `dtype`, on every device."""
    if dtype.itemsize > 2:
        # Without matrix units at this precision, operands are held in registers.
        return SegmentSettings(block_m=16, block_n=32, num_warps=4, num_stages=1)
    # Up to a width of 96, three programs fit into an SM's registers: the softmax of one overlaps with the products of
    # another.
    return SegmentSettings(block_m=64, block_n=64, num_warps=4, num_stages=3)


def head_parts(head_dim: int, split: bool) -> tuple[int, int]:
    """Columns of both parts: powers of two, at least the size of a matrix instruction; 0 for the second if one part
    suffices."""
    whole = max(16, triton.next_power_of_2(head_dim))
    first = whole // 2
    rest = max(16, triton.next_power_of_2(head_dim - first))
    return (first, rest) if split and first >= 16 and first + rest < whole else (whole, 0)


def attend_segments(
    q_SHW: Tensor, k_SHW: Tensor, v_SHW: Tensor, bounds_S2: Tensor, scale: float, settings: SegmentSettings
) -> Tensor:
    """Launches the kernel. Arguments as for the package's function, which chooses the settings."""
    positions, heads, head_dim = q_SHW.shape
    out_SHW = q_SHW.new_empty(positions, heads, head_dim)
    first, rest = head_parts(head_dim, settings.split)
    _attend[(triton.cdiv(positions, settings.block_m), heads)](
        q_SHW,
        k_SHW,
        v_SHW,
        bounds_S2,
        out_SHW,
        positions,
        scale / math.log(2),  # exp2 is the exponential that the hardware has
        Q_STRIDE_S=q_SHW.stride(0),
        Q_STRIDE_H=q_SHW.stride(1),
        K_STRIDE_S=k_SHW.stride(0),
        K_STRIDE_H=k_SHW.stride(1),
        V_STRIDE_S=v_SHW.stride(0),
        V_STRIDE_H=v_SHW.stride(1),
        HEADS=heads,
        WIDTH=head_dim,
        BLOCK_M=settings.block_m,
        BLOCK_N=settings.block_n,
        BLOCK_A=first,
        BLOCK_B=rest,
        num_warps=settings.num_warps,
        num_stages=settings.num_stages,
    )
    return out_SHW


@triton.jit(do_not_specialize=["positions"])
def _attend(
    q_ptr,
    k_ptr,
    v_ptr,
    bounds_ptr,
    out_ptr,
    positions,
    scale,
    Q_STRIDE_S: tl.constexpr,
    Q_STRIDE_H: tl.constexpr,
    K_STRIDE_S: tl.constexpr,
    K_STRIDE_H: tl.constexpr,
    V_STRIDE_S: tl.constexpr,
    V_STRIDE_H: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_A: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    head = tl.program_id(1)
    first = tl.program_id(0) * BLOCK_M
    last = tl.minimum(first + BLOCK_M, positions)
    index_m = first + tl.arange(0, BLOCK_M)
    row_m = index_m.to(tl.int64)
    live_m = index_m < last
    q_m = q_ptr + head * Q_STRIDE_H + row_m * Q_STRIDE_S
    out_m = out_ptr + head * WIDTH + row_m * (HEADS * WIDTH)
    k_ptr += head * K_STRIDE_H
    v_ptr += head * V_STRIDE_H
    qa = _load(q_m, live_m, 0, BLOCK_A, WIDTH, True)
    qb = _load(q_m, live_m, BLOCK_A, BLOCK_B, WIDTH, True) if BLOCK_B > 0 else qa

    while first < last:
        start = tl.load(bounds_ptr + 2 * first)
        end = tl.load(bounds_ptr + 2 * first + 1)
        whole = start + (end - start) // BLOCK_N * BLOCK_N
        highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        a = tl.zeros([BLOCK_M, BLOCK_A], tl.float32)
        b = tl.zeros([BLOCK_M, BLOCK_B], tl.float32) if BLOCK_B > 0 else a
        highest, total, a, b = _take_keys(
            highest, total, a, b, qa, qb, k_ptr, v_ptr, start, whole, end, scale,
            K_STRIDE_S, V_STRIDE_S, WIDTH, BLOCK_N, BLOCK_A, BLOCK_B, False,
        )  # fmt: skip
        highest, total, a, b = _take_keys(
            highest, total, a, b, qa, qb, k_ptr, v_ptr, whole, end, end, scale,
            K_STRIDE_S, V_STRIDE_S, WIDTH, BLOCK_N, BLOCK_A, BLOCK_B, True,
        )  # fmt: skip
        # Padding has end 0 and no keys, and extends to the end of the batch.
        after = tl.where(end > first, tl.minimum(end, last), last)
        share_m = 1 / tl.where(end > first, total, 1.0)
        own_m = (index_m >= first) & (index_m < after)
        _store(out_m, a * share_m[:, None], own_m, 0, BLOCK_A, WIDTH)
        if BLOCK_B > 0:
            _store(out_m, b * share_m[:, None], own_m, BLOCK_A, BLOCK_B, WIDTH)
        first = after


@triton.jit
def _take_keys(
    highest, total, a, b, qa, qb, k_ptr, v_ptr, begin, stop, end, scale,
    K_STRIDE_S: tl.constexpr,
    V_STRIDE_S: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_A: tl.constexpr,
    BLOCK_B: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Accumulates keys and values from `begin` to `stop`. MASKED: whether the last tile extends beyond `end`, the end
    of the segment."""
    offs_n = tl.arange(0, BLOCK_N)
    k_ptr += begin.to(tl.int64) * K_STRIDE_S
    v_ptr += begin.to(tl.int64) * V_STRIDE_S
    # Offsets from there differ only by a scalar in each iteration, and have 32 bits, which saves registers.
    for tile in range(0, stop - begin, BLOCK_N):
        live_n = tile + offs_n < end - begin
        k_n = k_ptr + tile * K_STRIDE_S + offs_n * K_STRIDE_S
        v_n = v_ptr + tile * V_STRIDE_S + offs_n * V_STRIDE_S
        scores = tl.dot(qa, tl.trans(_load(k_n, live_n, 0, BLOCK_A, WIDTH, MASKED)), input_precision="ieee")
        if BLOCK_B > 0:
            kb = _load(k_n, live_n, BLOCK_A, BLOCK_B, WIDTH, MASKED)
            scores = tl.dot(qb, tl.trans(kb), scores, input_precision="ieee")
        if MASKED:
            scores = tl.where(live_n[None, :], scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1) * scale)
        shrink = tl.exp2(highest - higher)
        weights = tl.exp2(scores * scale - higher[:, None])
        total = total * shrink + tl.sum(weights, 1)
        va = _load(v_n, live_n, 0, BLOCK_A, WIDTH, MASKED)
        weights = weights.to(va.dtype)
        a = tl.dot(weights, va, a * shrink[:, None], input_precision="ieee")
        if BLOCK_B > 0:
            vb = _load(v_n, live_n, BLOCK_A, BLOCK_B, WIDTH, MASKED)
            b = tl.dot(weights, vb, b * shrink[:, None], input_precision="ieee")
        highest = higher
    return highest, total, a, b


@triton.jit
def _load(row_ptr, live, FIRST: tl.constexpr, COUNT: tl.constexpr, WIDTH: tl.constexpr, MASKED: tl.constexpr):
    """Columns of the rows from `FIRST` on; zeros beyond `WIDTH` and, if `MASKED`, in rows that are not live."""
    column = FIRST + tl.arange(0, COUNT)
    at = row_ptr[:, None] + column[None, :]
    if FIRST + COUNT > WIDTH:
        inside = (column < WIDTH)[None, :]
        if MASKED:
            inside = inside & live[:, None]
        values = tl.load(at, mask=inside, other=0.0)
    elif MASKED:
        values = tl.load(at, mask=live[:, None], other=0.0)
    else:
        values = tl.load(at)
    return values


@triton.jit
def _store(row_ptr, values, live, FIRST: tl.constexpr, COUNT: tl.constexpr, WIDTH: tl.constexpr):
    column = FIRST + tl.arange(0, COUNT)
    inside = live[:, None] & (column < WIDTH)[None, :]
    tl.store(row_ptr[:, None] + column[None, :], values.to(row_ptr.dtype.element_ty), mask=inside)
