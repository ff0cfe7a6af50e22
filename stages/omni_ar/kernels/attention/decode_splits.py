"""Adds up the parts of rows whose keys are split among programs of decode attention.

Shape legend: R decode rows, H query heads, D head width, S splits.
"""

import triton
import triton.language as tl
from torch import Tensor

from omni_ar.kernels.attention.decode_queries import lengths_of, positions_of, query_heads
from omni_ar.kernels.attention.settings import DecodeSettings, matrix_block
from omni_ar.kernels.overlap import overlap_options, overlaps


@triton.jit
def add_up(
    out_ptr,
    partial_ptr,
    lse_ptr,
    head_at,
    live_g,
    used,
    HEAD_DIM: tl.constexpr,
    SUM_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SPLITS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Adds up the splits of SUM_G query heads, always in the same order. AT_ONCE: splits that are loaded together."""
    offs_d = tl.arange(0, BLOCK_D)
    highest = tl.full([SUM_G], float("-inf"), tl.float32)
    total = tl.zeros([SUM_G], tl.float32)
    acc = tl.zeros([SUM_G, BLOCK_D], tl.float32)
    for begin in range(0, used, AT_ONCE):
        for step in tl.static_range(AT_ONCE):
            split = begin + step
            at = head_at * SPLITS + split
            there = live_g & (tl.full([SUM_G], split, tl.int32) < used)
            # Other SMs wrote these, so the load bypasses this SM's L1 cache.
            lse = tl.load(lse_ptr + at, mask=there, other=float("-inf"), cache_modifier=".cg")
            part_at = (at * HEAD_DIM)[:, None] + offs_d[None, :]
            live_gd = there[:, None] & (offs_d < HEAD_DIM)[None, :]
            part = tl.load(partial_ptr + part_at, mask=live_gd, other=0.0, cache_modifier=".cg")
            higher = tl.maximum(highest, lse)
            # Padded heads, and decode rows without keys, have a highest score of -inf, and infinity minus infinity is NaN.
            base = tl.where(higher > float("-inf"), higher, 0.0)
            shrink = tl.exp2(highest - base)
            weight = tl.exp2(lse - base)
            total = total * shrink + weight
            acc = acc * shrink[:, None] + part * weight[:, None]
            highest = higher
    out_at = (head_at * HEAD_DIM)[:, None] + offs_d[None, :]
    out_live = live_g[:, None] & (offs_d < HEAD_DIM)[None, :]
    total = tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + out_at, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=out_live)


@triton.jit
def _reduce(
    out_ptr,
    partial_ptr,
    lse_ptr,
    lengths_ptr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    POSITIONS: tl.constexpr,
    TOGETHER: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    AT_ONCE: tl.constexpr,
    WINDOW: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    decode_row = tl.program_id(1)
    PARTS: tl.constexpr = (POSITIONS + TOGETHER - 1) // TOGETHER
    program = decode_row // POSITIONS * PARTS + decode_row % POSITIONS // TOGETHER
    _, first, positions = positions_of(program, POSITIONS, TOGETHER)
    _, length, shortest = lengths_of(lengths_ptr + first, positions, 1, TOGETHER, BLOCK_P)
    tiles = tl.cdiv(length, BLOCK_N)
    if WINDOW:
        tiles -= tl.maximum(shortest - WINDOW, 0) // BLOCK_N
    used = tl.minimum(tiles, SPLITS)
    if used > 1:
        head_at, live_g = query_heads(decode_row, tl.program_id(0), 1, HEADS, 1, 1, 1)
        add_up(out_ptr, partial_ptr, lse_ptr, head_at, live_g, used, HEAD_DIM, 1, BLOCK_D, SPLITS, AT_ONCE)


def add_up_apart(
    out_RHD: Tensor,
    partial_RHSD: Tensor,
    lse_RHS: Tensor,
    lengths_R: Tensor,
    settings: DecodeSettings,
    window: int,
    positions: int,
    together: int,
) -> None:
    """Launches the second kernel, which adds up the parts of split rows."""
    rows, heads, head_dim = out_RHD.shape
    _reduce[(heads, rows)](
        out_RHD,
        partial_RHSD,
        lse_RHS,
        lengths_R,
        HEADS=heads,
        HEAD_DIM=head_dim,
        POSITIONS=positions,
        TOGETHER=together,
        BLOCK_P=triton.next_power_of_2(together),
        BLOCK_D=matrix_block(head_dim),
        BLOCK_N=settings.block_n,
        SPLITS=settings.splits,
        AT_ONCE=min(settings.splits, 16),
        WINDOW=window,
        num_warps=1,
        **overlap_options(overlaps(out_RHD)),
    )
