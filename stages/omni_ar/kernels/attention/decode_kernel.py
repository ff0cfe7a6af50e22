"""Split-KV decode attention: one program per key head, row and split; the last split to finish adds the parts up.

A row with drafts has several positions, each a decode row of its own. They have the keys of their row in common, which one program
loads once for as many of them as its tile of queries holds.

Shape legend: R decode rows, N blocks, B slots per block, M blocks per row, H query heads, K key and value heads, G = H / K, D head
width, S splits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from omni_ar.kernels.attention.decode_queries import lengths_of, positions_of, queries_of, query_heads
from omni_ar.kernels.attention.decode_splits import add_up, add_up_apart
from omni_ar.kernels.attention.features import PLAIN, AttentionFeatures
from omni_ar.kernels.attention.scores_kernel import LOG2E, capped_and_biased
from omni_ar.kernels.attention.settings import DecodeSettings, log2_scale, matrix_block, positions_together
from omni_ar.kernels.overlap import overlaps
from omni_ar.kernels.prefetch import prefetch_rows_l2, prefetches


# These numbers vary from step to step: with specialization, each value would compile a kernel of its own.
@triton.jit(do_not_specialize=["table_stride", "columns", "blocks"])
def _decode(
    q_ptr,
    key_ptr,
    value_ptr,
    table_ptr,
    lengths_ptr,
    out_ptr,
    partial_ptr,
    lse_ptr,
    finished_splits_ptr,
    slopes_ptr,
    sinks_ptr,
    table_stride,
    columns,
    blocks,
    scale,
    Q_STRIDE_T: tl.constexpr,
    Q_STRIDE_H: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    POSITIONS: tl.constexpr,
    TOGETHER: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_G: tl.constexpr,
    SUM_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    FUSED: tl.constexpr,
    ROW_BYTES: tl.constexpr,
    OVERLAP: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    ALIBI: tl.constexpr,
    SINKS: tl.constexpr,
):
    """POSITIONS: decode rows of one row of the stage. TOGETHER: those of one program, of which the last program of a row may have
    fewer. BLOCK_G: at least their query heads."""
    head = tl.program_id(0)
    split = tl.program_id(2)
    row, first, positions = positions_of(tl.program_id(1), POSITIONS, TOGETHER)
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        if ROW_BYTES > 0:
            _prefetch_tile(
                key_ptr, value_ptr, table_ptr + row.to(tl.int64) * table_stride, lengths_ptr + row, columns, blocks,
                head, split, KV_HEADS, HEAD_DIM, BLOCK_SIZE, BLOCK_N, ROW_BYTES,
            )  # fmt: skip
        tl.extra.cuda.gdc_wait()
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    table = table_ptr + row.to(tl.int64) * table_stride

    # A split takes tiles split, split + used, ...: without a window, the blocks of its first tile do not depend on the
    # row's length, so both are loaded at once.
    if WINDOW:
        lengths_g, length, shortest = lengths_of(lengths_ptr + first, positions, GROUP, TOGETHER, BLOCK_G)
        skipped = tl.maximum(shortest - WINDOW, 0) // BLOCK_N
        position = (skipped + split) * BLOCK_N + offs_n
        block = tl.load(table + position // BLOCK_SIZE, mask=position < length, other=0)
    else:
        position = split * BLOCK_N + offs_n
        block = tl.load(table + position // BLOCK_SIZE, mask=position < columns * BLOCK_SIZE, other=0)
        lengths_g, length, shortest = lengths_of(lengths_ptr + first, positions, GROUP, TOGETHER, BLOCK_G)
        skipped = 0
    head_at, live_g = query_heads(first, head, positions, KV_HEADS, GROUP, TOGETHER, BLOCK_G)
    live_gd = live_g[:, None] & (offs_d < HEAD_DIM)[None, :]
    position_g, member_g = queries_of(GROUP, TOGETHER, BLOCK_G)
    q_at = first.to(tl.int64) * Q_STRIDE_T + (position_g * Q_STRIDE_T + (head * GROUP + member_g) * Q_STRIDE_H)[:, None]
    q = tl.load(q_ptr + q_at + offs_d[None, :], mask=live_gd, other=0.0)
    tiles = tl.cdiv(length, BLOCK_N) - skipped
    used = tl.minimum(tl.maximum(tiles, 1), SPLITS)
    if split >= used:
        return

    acc, total, highest = _attend_split(
        q, key_ptr, value_ptr, slopes_ptr, sinks_ptr, table, block, head, lengths_g, length, shortest, split, skipped, used,
        scale, KV_HEADS, GROUP, HEAD_DIM, TOGETHER, BLOCK_SIZE, BLOCK_G, BLOCK_D, BLOCK_N, WINDOW, SOFTCAP, ALIBI, SINKS,
    )  # fmt: skip
    # A row of length 0 has a total weight of 0, and yields zeros.
    total = tl.where(total == 0.0, 1.0, total)
    part = acc / total[:, None]

    if used == 1:
        tl.store(
            out_ptr + (head_at * HEAD_DIM)[:, None] + offs_d[None, :], part.to(out_ptr.dtype.element_ty), mask=live_gd
        )
    if SPLITS > 1:
        _hand_in(
            part, highest + tl.log2(total), out_ptr, partial_ptr, lse_ptr,
            finished_splits_ptr + tl.program_id(1) * KV_HEADS + head, first, head, positions, split, used,
            KV_HEADS, GROUP, HEAD_DIM, TOGETHER, BLOCK_G, SUM_G, BLOCK_D, SPLITS, FUSED,
        )  # fmt: skip


@triton.jit
def _prefetch_tile(
    key_ptr, value_ptr, table, length_ptr, columns, blocks, head, split,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ROW_BYTES: tl.constexpr,
):  # fmt: skip
    """Prefetches the keys and values of a program's first tile, before the previous kernels are complete.

    They may still write the table and the length, whose old values then choose other memory of the cache: that costs time, and
    changes no result. The loads leave nothing in the L1 cache, where it would be found after the wait.
    """
    offs_2n = tl.arange(0, 2 * BLOCK_N)
    position = split * BLOCK_N + offs_2n % BLOCK_N
    length = tl.load(length_ptr, cache_modifier=".cg").to(tl.int32)
    live = position < tl.minimum(length, columns * BLOCK_SIZE)
    block = tl.load(table + position // BLOCK_SIZE, mask=live, other=0, cache_modifier=".cg")
    block = tl.minimum(tl.maximum(block, 0), blocks - 1)
    at = ((block * BLOCK_SIZE + position % BLOCK_SIZE) * KV_HEADS + head) * HEAD_DIM
    pages = tl.where(offs_2n < BLOCK_N, key_ptr.to(tl.int64), value_ptr.to(tl.int64))
    element: tl.constexpr = ROW_BYTES // HEAD_DIM
    prefetch_rows_l2(pages + at * element, tl.where(live, ROW_BYTES, 0))


@triton.jit
def _attend_split(
    q, key_ptr, value_ptr, slopes_ptr, sinks_ptr, table, block, head, lengths_g, length, shortest, split, skipped, used, scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TOGETHER: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    ALIBI: tl.constexpr,
    SINKS: tl.constexpr,
):  # fmt: skip
    """Weighted values, sum of weights and highest score over a split's tiles. block: the block of each key of the first
    tile. skipped: tiles before all windows."""
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    _, member_g = queries_of(GROUP, TOGETHER, BLOCK_G)
    query_head = head * GROUP + member_g
    live_g = tl.arange(0, BLOCK_G) < GROUP * TOGETHER
    highest = tl.full([BLOCK_G], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_G], tl.float32)
    if SINKS:
        # The sink enters one split, so that it is in the sum over the splits once.
        sink = tl.load(sinks_ptr + query_head, mask=live_g, other=0.0)
        highest = tl.where(split == 0, sink.to(tl.float32) * LOG2E, highest)
        total = tl.where(split == 0, 1.0, total)
    acc = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
    slope = 0.0
    if ALIBI:
        slope = tl.load(slopes_ptr + query_head, mask=live_g, other=0.0)[:, None]
    for turn in range(tl.cdiv(tl.cdiv(length, BLOCK_N) - skipped - split, used)):
        position = (skipped + split + turn * used) * BLOCK_N + offs_n
        live_n = position < length
        if WINDOW:
            live_n = live_n & (position >= shortest - WINDOW)
        # Values beyond the length are not loaded: zero weight times NaN would be NaN.
        live_nd = live_n[:, None] & (offs_d < HEAD_DIM)[None, :]
        slot = block * BLOCK_SIZE + position % BLOCK_SIZE
        kv_at = ((slot * KV_HEADS + head) * HEAD_DIM)[:, None] + offs_d[None, :]
        k = tl.load(key_ptr + kv_at, mask=live_nd, other=0.0)
        v = tl.load(value_ptr + kv_at, mask=live_nd, other=0.0)
        ahead = position + used * BLOCK_N
        block = tl.load(table + ahead // BLOCK_SIZE, mask=ahead < length, other=0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        if SOFTCAP > 0 or ALIBI:
            distance = (position + 1)[None, :] - (length if TOGETHER == 1 else lengths_g[:, None])
            scores = capped_and_biased(scores, scale, slope, distance, SOFTCAP, ALIBI)
            unit = 1.0
        else:
            unit = scale
        if TOGETHER == 1:
            seen = live_n[None, :]
        else:
            seen = position[None, :] < lengths_g[:, None]
            if WINDOW:
                seen = seen & (position[None, :] >= lengths_g[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1) * unit)
        # A query may see no key of a tile that another sees: infinity minus infinity is NaN.
        base = higher if TOGETHER == 1 else tl.where(higher > float("-inf"), higher, 0.0)
        shrink = tl.exp2(highest - base)
        weights = tl.exp2(scores * unit - base[:, None])
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        highest = higher
    return acc, total, highest


@triton.jit
def _hand_in(
    part, lse, out_ptr, partial_ptr, lse_ptr, finished_splits_ptr, first, head, positions, split, used,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TOGETHER: tl.constexpr,
    BLOCK_G: tl.constexpr,
    SUM_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SPLITS: tl.constexpr,
    FUSED: tl.constexpr,
):  # fmt: skip
    """Stores a split's part for the program that adds the parts up. finished_splits: their number for these queries. first: the
    queries' first decode row."""
    if used > 1:
        offs_d = tl.arange(0, BLOCK_D)
        head_at, live_g = query_heads(first, head, positions, KV_HEADS, GROUP, TOGETHER, BLOCK_G)
        at = head_at * SPLITS + split
        part_at = (at * HEAD_DIM)[:, None] + offs_d[None, :]
        tl.store(partial_ptr + part_at, part, mask=live_g[:, None] & (offs_d < HEAD_DIM)[None, :])
        tl.store(lse_ptr + at, lse, mask=live_g)
        if FUSED:
            # All threads have stored before one of them counts the split.
            tl.debug_barrier()
            before = tl.atomic_add(finished_splits_ptr, 1, sem="acq_rel", scope="gpu")
            if before == used - 1:
                # Zero again for the next launch.
                tl.store(finished_splits_ptr, 0)
                sum_at, live_sum = query_heads(first, head, positions, KV_HEADS, GROUP, TOGETHER, SUM_G)
                # As many registers for several positions as for one.
                AT_ONCE: tl.constexpr = 8 if TOGETHER == 1 else (2 if TOGETHER <= 4 else 1)
                add_up(out_ptr, partial_ptr, lse_ptr, sum_at, live_sum, used, HEAD_DIM, SUM_G, BLOCK_D, SPLITS, AT_ONCE)


def decode_attention(
    q_RHD: Tensor,
    key_NBKD: Tensor,
    value_NBKD: Tensor,
    table_RM: Tensor,
    lengths_R: Tensor,
    finished_splits: Tensor,
    settings: DecodeSettings,
    out_RHD: Tensor,
    features: AttentionFeatures = PLAIN,
    positions: int = 1,
) -> None:
    """Launches the kernel. The last dimension of `q_RHD` is dense; key_NBKD, value_NBKD and out_RHD are contiguous.

    finished_splits: int32 zeros that no other stream uses during the launch; zeros again afterwards. With fewer than programs times
    K of them, or without `settings.fused`, a second kernel adds up the parts of split rows. positions: as many consecutive decode
    rows, of which R is a multiple, have the keys of one row; the table of the first is read.
    """
    rows, heads, head_dim = q_RHD.shape
    _, block_size, kv_heads, _ = key_NBKD.shape
    splits, group, itemsize = settings.splits, heads // kv_heads, key_NBKD.element_size()
    together = positions_together(positions, group, head_dim, itemsize)
    programs = rows // positions * triton.cdiv(positions, together)
    fused = settings.fused and programs * kv_heads <= finished_splits.shape[0]
    parts = rows * heads * splits if splits > 1 else 0
    partial_RHSD = torch.empty(parts * head_dim, dtype=torch.float32, device=q_RHD.device)
    lse_RHS = torch.empty(parts, dtype=torch.float32, device=q_RHD.device)
    overlap = overlaps(q_RHD)
    row_bytes = head_dim * itemsize
    block_g, block_d = matrix_block(group * together), matrix_block(head_dim)
    _decode[(kv_heads, programs, splits)](
        q_RHD,
        key_NBKD,
        value_NBKD,
        table_RM,
        lengths_R,
        out_RHD,
        partial_RHSD,
        lse_RHS,
        finished_splits,
        features.alibi_slopes,
        features.sinks,
        table_RM.stride(0),
        table_RM.shape[1],
        key_NBKD.shape[0],
        log2_scale(features.scale_of(head_dim)),
        Q_STRIDE_T=q_RHD.stride(0),
        Q_STRIDE_H=q_RHD.stride(1),
        KV_HEADS=kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        POSITIONS=positions,
        TOGETHER=together,
        BLOCK_SIZE=block_size,
        BLOCK_G=block_g,
        SUM_G=triton.next_power_of_2(group * together),
        BLOCK_D=block_d,
        BLOCK_N=settings.block_n,
        SPLITS=splits,
        FUSED=fused,
        # A window's first tile depends on the length that the kernel may not have yet.
        ROW_BYTES=row_bytes if features.window is None and row_bytes % 16 == 0 and prefetches() else 0,
        OVERLAP=overlap,
        WINDOW=features.window or 0,
        SOFTCAP=features.softcap or 0.0,
        ALIBI=features.alibi_slopes is not None,
        SINKS=features.sinks is not None,
        num_stages=settings.num_stages,
        **_threads(settings, block_g * block_d if together > 1 else 0),
        launch_pdl=overlap,
    )
    if splits > 1 and not fused:
        window = features.window or 0
        add_up_apart(out_RHD, partial_RHSD, lse_RHS, lengths_R, settings, window, positions, together)


def _threads(settings: DecodeSettings, accumulated: int) -> dict[str, int | None]:
    """Warps of a program and registers of a thread. The settings are those of one position. accumulated: numbers that a program of
    several accumulates, 0 for one position; a warp has at most 1024 of them."""
    if not accumulated:
        return {"num_warps": settings.num_warps, "maxnreg": settings.registers or None}
    return {"num_warps": max(settings.num_warps, accumulated // 1024)}
