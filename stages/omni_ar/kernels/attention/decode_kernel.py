"""Split-KV decode attention: one program per key head, row and split; the last split to arrive adds the parts up.

Shape legend: R rows, N blocks, B slots per block, M blocks per row, H query heads, K key and value heads, G = H / K, D head width,
S splits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from omni_ar.kernels.attention.features import PLAIN, AttentionFeatures
from omni_ar.kernels.attention.scores_kernel import LOG2E, capped_and_biased
from omni_ar.kernels.attention.settings import DecodeSettings, log2_scale, matrix_block
from omni_ar.kernels.overlap import overlap_options, overlaps
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
    arrivals_ptr,
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
    head = tl.program_id(0)
    row = tl.program_id(1)
    split = tl.program_id(2)
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        if ROW_BYTES > 0:
            _prefetch_tile(
                key_ptr, value_ptr, table_ptr + row.to(tl.int64) * table_stride, lengths_ptr + row, columns, blocks,
                head, split, KV_HEADS, HEAD_DIM, BLOCK_SIZE, BLOCK_N, ROW_BYTES,
            )  # fmt: skip
        tl.extra.cuda.gdc_wait()
    offs_n = tl.arange(0, BLOCK_N)
    offs_g = tl.arange(0, BLOCK_G)
    offs_d = tl.arange(0, BLOCK_D)
    table = table_ptr + row.to(tl.int64) * table_stride

    # A split takes tiles split, split + used, ...: without a window, the blocks of its first tile do not depend on the
    # row's length, so both are loaded at once.
    if WINDOW:
        length = tl.load(lengths_ptr + row).to(tl.int32)
        skipped = tl.maximum(length - WINDOW, 0) // BLOCK_N
        position = (skipped + split) * BLOCK_N + offs_n
        block = tl.load(table + position // BLOCK_SIZE, mask=position < length, other=0)
    else:
        position = split * BLOCK_N + offs_n
        block = tl.load(table + position // BLOCK_SIZE, mask=position < columns * BLOCK_SIZE, other=0)
        length = tl.load(lengths_ptr + row).to(tl.int32)
        skipped = 0
    live_gd = (offs_g < GROUP)[:, None] & (offs_d < HEAD_DIM)[None, :]
    q_at = row.to(tl.int64) * Q_STRIDE_T + (head * GROUP + offs_g)[:, None] * Q_STRIDE_H + offs_d[None, :]
    q = tl.load(q_ptr + q_at, mask=live_gd, other=0.0)
    tiles = tl.cdiv(length, BLOCK_N) - skipped
    used = tl.minimum(tl.maximum(tiles, 1), SPLITS)
    if split >= used:
        return

    acc, total, highest = _attend_split(
        q, key_ptr, value_ptr, slopes_ptr, sinks_ptr, table, block, head, length, split, skipped, used, scale,
        KV_HEADS, GROUP, HEAD_DIM, BLOCK_SIZE, BLOCK_G, BLOCK_D, BLOCK_N, WINDOW, SOFTCAP, ALIBI, SINKS,
    )  # fmt: skip
    # A row of length 0 has a total weight of 0, and yields zeros.
    total = tl.where(total == 0.0, 1.0, total)
    part = acc / total[:, None]

    first = (row * KV_HEADS + head).to(tl.int64)
    head_at = first * GROUP + offs_g
    if used == 1:
        tl.store(
            out_ptr + (head_at * HEAD_DIM)[:, None] + offs_d[None, :], part.to(out_ptr.dtype.element_ty), mask=live_gd
        )
    if SPLITS > 1:
        _hand_in(
            part, highest + tl.log2(total), out_ptr, partial_ptr, lse_ptr, arrivals_ptr, first, split, used,
            GROUP, HEAD_DIM, BLOCK_G, SUM_G, BLOCK_D, SPLITS, FUSED,
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
    q, key_ptr, value_ptr, slopes_ptr, sinks_ptr, table, block, head, length, split, skipped, used, scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
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
    tile. skipped: tiles before the window."""
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    offs_g = tl.arange(0, BLOCK_G)
    highest = tl.full([BLOCK_G], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_G], tl.float32)
    if SINKS:
        # The sink enters one split, so that it is in the sum over the splits once.
        sink = tl.load(sinks_ptr + head * GROUP + offs_g, mask=offs_g < GROUP, other=0.0)
        highest = tl.where(split == 0, sink.to(tl.float32) * LOG2E, highest)
        total = tl.where(split == 0, 1.0, total)
    acc = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
    slope = 0.0
    if ALIBI:
        slope = tl.load(slopes_ptr + head * GROUP + offs_g, mask=offs_g < GROUP, other=0.0)[:, None]
    for turn in range(tl.cdiv(tl.cdiv(length, BLOCK_N) - skipped - split, used)):
        position = (skipped + split + turn * used) * BLOCK_N + offs_n
        live_n = position < length
        if WINDOW:
            live_n = live_n & (position >= length - WINDOW)
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
            scores = capped_and_biased(scores, scale, slope, (position - length + 1)[None, :], SOFTCAP, ALIBI)
            unit = 1.0
        else:
            unit = scale
        scores = tl.where(live_n[None, :], scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1) * unit)
        shrink = tl.exp2(highest - higher)
        weights = tl.exp2(scores * unit - higher[:, None])
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        highest = higher
    return acc, total, highest


@triton.jit
def _hand_in(
    part, lse, out_ptr, partial_ptr, lse_ptr, arrivals_ptr, first, split, used,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_G: tl.constexpr,
    SUM_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SPLITS: tl.constexpr,
    FUSED: tl.constexpr,
):  # fmt: skip
    """Stores a split's part, of key head `first` counted over all rows, for the program that adds the parts up."""
    if used > 1:
        offs_g = tl.arange(0, BLOCK_G)
        offs_d = tl.arange(0, BLOCK_D)
        live_g = offs_g < GROUP
        at = (first * GROUP + offs_g) * SPLITS + split
        part_at = (at * HEAD_DIM)[:, None] + offs_d[None, :]
        tl.store(partial_ptr + part_at, part, mask=live_g[:, None] & (offs_d < HEAD_DIM)[None, :])
        tl.store(lse_ptr + at, lse, mask=live_g)
        if FUSED:
            # All threads have stored before one of them counts the arrival.
            tl.debug_barrier()
            arrived = tl.atomic_add(arrivals_ptr + first, 1, sem="acq_rel", scope="gpu")
            if arrived == used - 1:
                # Zero again for the next launch.
                tl.store(arrivals_ptr + first, 0)
                _add_up(out_ptr, partial_ptr, lse_ptr, first * GROUP, used, GROUP, HEAD_DIM, SUM_G, BLOCK_D, SPLITS, 8)


@triton.jit
def _add_up(
    out_ptr,
    partial_ptr,
    lse_ptr,
    first_head,
    used,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SUM_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SPLITS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Adds up the splits of GROUP query heads of one row, always in the same order. AT_ONCE: splits that are loaded
    together."""
    offs_g = tl.arange(0, SUM_G)
    offs_d = tl.arange(0, BLOCK_D)
    live_g = offs_g < GROUP
    head_at = first_head + offs_g
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
            # Padded heads have a highest score of -inf, and infinity minus infinity is NaN.
            base = tl.where(live_g, higher, 0.0)
            shrink = tl.exp2(highest - base)
            weight = tl.exp2(lse - base)
            total = total * shrink + weight
            acc = acc * shrink[:, None] + part * weight[:, None]
            highest = higher
    out_at = (head_at * HEAD_DIM)[:, None] + offs_d[None, :]
    out_live = live_g[:, None] & (offs_d < HEAD_DIM)[None, :]
    total = tl.where(live_g, total, 1.0)
    tl.store(out_ptr + out_at, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=out_live)


@triton.jit
def _reduce(
    out_ptr,
    partial_ptr,
    lse_ptr,
    lengths_ptr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
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
    row = tl.program_id(1)
    length = tl.load(lengths_ptr + row).to(tl.int32)
    tiles = tl.cdiv(length, BLOCK_N)
    if WINDOW:
        tiles -= tl.maximum(length - WINDOW, 0) // BLOCK_N
    used = tl.minimum(tiles, SPLITS)
    if used > 1:
        head = (row * HEADS + tl.program_id(0)).to(tl.int64)
        _add_up(out_ptr, partial_ptr, lse_ptr, head, used, 1, HEAD_DIM, 1, BLOCK_D, SPLITS, AT_ONCE)


def decode_attention(
    q_RHD: Tensor,
    key_NBKD: Tensor,
    value_NBKD: Tensor,
    table_RM: Tensor,
    lengths_R: Tensor,
    arrivals: Tensor,
    settings: DecodeSettings,
    out_RHD: Tensor,
    features: AttentionFeatures = PLAIN,
) -> None:
    """Launches the kernel. The last dimension of `q_RHD` is dense; key_NBKD, value_NBKD and out_RHD are contiguous.

    arrivals: int32 zeros that no other stream uses during the launch; zeros again afterwards. With fewer than R * K of
    them, or without `settings.fused`, a second kernel adds up the parts of split rows.
    """
    rows, heads, head_dim = q_RHD.shape
    _, block_size, kv_heads, _ = key_NBKD.shape
    splits = settings.splits
    fused = settings.fused and rows * kv_heads <= arrivals.shape[0]
    parts = rows * heads * splits if splits > 1 else 0
    partial_RHSD = torch.empty(parts * head_dim, dtype=torch.float32, device=q_RHD.device)
    lse_RHS = torch.empty(parts, dtype=torch.float32, device=q_RHD.device)
    overlap = overlaps(q_RHD)
    row_bytes = head_dim * key_NBKD.element_size()
    _decode[(kv_heads, rows, splits)](
        q_RHD,
        key_NBKD,
        value_NBKD,
        table_RM,
        lengths_R,
        out_RHD,
        partial_RHSD,
        lse_RHS,
        arrivals,
        features.alibi_slopes,
        features.sinks,
        table_RM.stride(0),
        table_RM.shape[1],
        key_NBKD.shape[0],
        log2_scale(features.scale_of(head_dim)),
        Q_STRIDE_T=q_RHD.stride(0),
        Q_STRIDE_H=q_RHD.stride(1),
        KV_HEADS=kv_heads,
        GROUP=heads // kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        BLOCK_G=matrix_block(heads // kv_heads),
        SUM_G=triton.next_power_of_2(heads // kv_heads),
        BLOCK_D=matrix_block(head_dim),
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
        num_warps=settings.num_warps,
        num_stages=settings.num_stages,
        launch_pdl=overlap,
    )
    if splits > 1 and not fused:
        _add_up_apart(out_RHD, partial_RHSD, lse_RHS, lengths_R, settings, features.window or 0)


def _add_up_apart(
    out_RHD: Tensor, partial_RHSD: Tensor, lse_RHS: Tensor, lengths_R: Tensor, settings: DecodeSettings, window: int
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
        BLOCK_D=matrix_block(head_dim),
        BLOCK_N=settings.block_n,
        SPLITS=settings.splits,
        AT_ONCE=min(settings.splits, 16),
        WINDOW=window,
        num_warps=1,
        **overlap_options(overlaps(out_RHD)),
    )
