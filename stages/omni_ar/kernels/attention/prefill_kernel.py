"""Causal attention of prompt chunks over paged keys: one launch for all rows of a step.

A tile holds some tokens of one row and all query heads that share a key head, so that short chunks fill it too. A tile
looks its row up on the device: the number of tiles follows from the maximum numbers of tokens and rows alone.

Shape legend: T tokens, N blocks, B slots per block, M blocks per row, P prompt rows, H query heads, K key and value heads,
D head width.
"""

import triton
import triton.language as tl
from torch import Tensor

from omni_ar.kernels.attention.features import PLAIN, AttentionFeatures
from omni_ar.kernels.attention.scores_kernel import LOG2E, capped_and_biased
from omni_ar.kernels.attention.settings import PrefillSettings, log2_scale, matrix_block

_ROWS_AT_ONCE = 64
"""Minimum number of rows among which a tile looks its row up; it covers most steps, so that few kernels are
compiled."""


@triton.jit(do_not_specialize=["rows_ptr", "num_rows", "first_token", "num_tokens", "table_stride"])
def _prefill(
    q_ptr,
    key_ptr,
    value_ptr,
    table_ptr,
    rows_ptr,
    out_ptr,
    slopes_ptr,
    sinks_ptr,
    num_rows,
    first_token,
    num_tokens,
    table_stride,
    scale,
    Q_STRIDE_T: tl.constexpr,
    Q_STRIDE_H: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    ALIBI: tl.constexpr,
    SINKS: tl.constexpr,
):
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    head = tl.program_id(0)
    # A row's last tiles have the most keys: they start first.
    tile = tl.num_programs(1) - 1 - tl.program_id(1)

    offs_p = tl.arange(0, BLOCK_P)
    queries_p = tl.load(rows_ptr + offs_p * 4 + 2, mask=offs_p < num_rows, other=0).to(tl.int32)
    tiles_p = tl.cdiv(queries_p, BLOCK_Q)
    ends_p = tl.cumsum(tiles_p, 0)
    used = tl.sum(tiles_p, 0)
    if tile >= used:
        # A tile without a row clears some of the padding, if any is left.
        padding = first_token + tl.sum(queries_p, 0) + (tile - used) * BLOCK_Q
        _clear(out_ptr, padding, num_tokens, head, KV_HEADS, GROUP, HEAD_DIM, BLOCK_D, BLOCK_M)
        return

    mine_p = (tile < ends_p) & (tile >= ends_p - tiles_p)
    entry = rows_ptr + tl.sum(tl.where(mine_p, offs_p, 0), 0) * 4
    first = (tile - tl.sum(tl.where(mine_p, ends_p - tiles_p, 0), 0)) * BLOCK_Q
    table = table_ptr + tl.load(entry) * table_stride
    start = tl.load(entry + 1)
    queries = tl.load(entry + 2).to(tl.int32)
    context = tl.load(entry + 3).to(tl.int32)

    offs_m = tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    token = first + offs_m // GROUP
    live_m = (offs_m < BLOCK_Q * GROUP) & (token < queries)
    live_md = live_m[:, None] & (offs_d < HEAD_DIM)[None, :]
    query_head = head * GROUP + offs_m % GROUP
    q_at = ((start + token) * Q_STRIDE_T + query_head * Q_STRIDE_H)[:, None] + offs_d[None, :]
    q = tl.load(q_ptr + q_at, mask=live_md, other=0.0)

    seen = context + tl.minimum(first + BLOCK_Q, queries)
    # Key tiles that every token of this tile attends to need no mask.
    whole = (context + first + 1) // BLOCK_N
    highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    slope = 0.0
    if SINKS:
        highest = tl.load(sinks_ptr + query_head, mask=live_m, other=0.0).to(tl.float32) * LOG2E
        total += 1.0
    if ALIBI:
        slope = tl.load(slopes_ptr + query_head, mask=live_m, other=0.0)[:, None]
    if WINDOW:
        # The first key that any token of this tile attends to; keys that every token attends to begin in tile `begin`.
        oldest = tl.maximum(context + first + 1 - WINDOW, 0)
        begin = tl.minimum(tl.cdiv(tl.maximum(seen - WINDOW, 0), BLOCK_N), whole)
        acc, total, highest = _attend(
            acc, total, highest, q, key_ptr, value_ptr, table, head, oldest // BLOCK_N, begin, context + token, oldest, seen,
            scale, slope, KV_HEADS, HEAD_DIM, BLOCK_SIZE, BLOCK_D, BLOCK_N, WINDOW, SOFTCAP, ALIBI, True,
        )  # fmt: skip
    else:
        oldest = 0
        begin = 0
    acc, total, highest = _attend(
        acc, total, highest, q, key_ptr, value_ptr, table, head, begin, whole, context + token, oldest, seen,
        scale, slope, KV_HEADS, HEAD_DIM, BLOCK_SIZE, BLOCK_D, BLOCK_N, WINDOW, SOFTCAP, ALIBI, False,
    )  # fmt: skip
    acc, total, highest = _attend(
        acc, total, highest, q, key_ptr, value_ptr, table, head, whole, tl.cdiv(seen, BLOCK_N), context + token, oldest, seen,
        scale, slope, KV_HEADS, HEAD_DIM, BLOCK_SIZE, BLOCK_D, BLOCK_N, WINDOW, SOFTCAP, ALIBI, True,
    )  # fmt: skip

    if WINDOW:
        # Tokens of the tile that are not the row's may attend to no key.
        total = tl.where(total == 0.0, 1.0, total)
    out_at = (((start + token) * KV_HEADS * GROUP + query_head) * HEAD_DIM)[:, None] + offs_d[None, :]
    tl.store(out_ptr + out_at, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=live_md)


@triton.jit
def _clear(
    out_ptr, first, end, head,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Writes zeros for one tile of tokens, from `first` to `end` at most."""
    offs_m = tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    token = first + offs_m // GROUP
    live_m = (offs_m < BLOCK_M // GROUP * GROUP) & (token < end)
    out_at = ((token.to(tl.int64) * KV_HEADS + head) * GROUP + offs_m % GROUP) * HEAD_DIM
    live_md = live_m[:, None] & (offs_d < HEAD_DIM)[None, :]
    tl.store(out_ptr + out_at[:, None] + offs_d[None, :], tl.zeros([BLOCK_M, BLOCK_D], tl.float32), mask=live_md)


@triton.jit
def _attend(
    acc, total, highest, q, key_ptr, value_ptr, table, head, begin, end, position_m, oldest, seen, scale, slope,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    ALIBI: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Accumulates key tiles `begin` to `end`. oldest, seen: any token of the tile attends to keys from `oldest` to
    `seen` - 1 only."""
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    for tile in range(begin, end):
        position_n = tile * BLOCK_N + offs_n
        if MASKED:
            live_n = position_n < seen
            if WINDOW:
                live_n = live_n & (position_n >= oldest)
            block = tl.load(table + position_n // BLOCK_SIZE, mask=live_n, other=0)
            # Values that no token attends to are not loaded: zero weight times NaN would be NaN.
            live_nd = live_n[:, None] & (offs_d < HEAD_DIM)[None, :]
        else:
            block = tl.load(table + position_n // BLOCK_SIZE)
            live_nd = (offs_d < HEAD_DIM)[None, :]
        slot = block * BLOCK_SIZE + position_n % BLOCK_SIZE
        kv_at = ((slot * KV_HEADS + head) * HEAD_DIM)[:, None] + offs_d[None, :]
        if MASKED or HEAD_DIM != BLOCK_D:
            k = tl.load(key_ptr + kv_at, mask=live_nd, other=0.0)
            v = tl.load(value_ptr + kv_at, mask=live_nd, other=0.0)
        else:
            k = tl.load(key_ptr + kv_at)
            v = tl.load(value_ptr + kv_at)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        if SOFTCAP > 0 or ALIBI:
            distance = position_n[None, :] - position_m[:, None]
            scores = capped_and_biased(scores, scale, slope, distance, SOFTCAP, ALIBI)
            unit = 1.0
        else:
            unit = scale
        if MASKED:
            visible = (position_n[None, :] <= position_m[:, None]) & live_n[None, :]
            if WINDOW:
                visible = visible & (position_n[None, :] > position_m[:, None] - WINDOW)
            scores = tl.where(visible, scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1) * unit)
        base = higher
        if MASKED and WINDOW:
            # A token may attend to none of its tile's first keys, and infinity minus infinity is NaN.
            base = tl.where(higher == float("-inf"), 0.0, higher)
        shrink = tl.exp2(highest - base)
        weights = tl.exp2(scores * unit - base[:, None])
        total = total * shrink + tl.sum(weights, 1)
        acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        highest = higher
    return acc, total, highest


def prefill_attention(
    q_THD: Tensor,
    key_NBKD: Tensor,
    value_NBKD: Tensor,
    table_NM: Tensor,
    rows_P4: Tensor,
    first: int,
    settings: PrefillSettings,
    out_THD: Tensor,
    features: AttentionFeatures = PLAIN,
) -> None:
    """Launches the kernel; see `attend_prompts`. The last dimension of `q_THD` is dense; key_NBKD, value_NBKD, rows_P4 and out_THD
    are contiguous."""
    tokens, heads, head_dim = q_THD.shape
    rows = rows_P4.shape[0]
    _, block_size, kv_heads, _ = key_NBKD.shape
    block_q = settings.block_m // (heads // kv_heads)
    # A row's last tile may be almost empty, so there may be one more tile per row. The remaining tiles suffice for the
    # padding.
    tiles = -(-(tokens - first) // block_q) + rows
    _prefill[(kv_heads, tiles)](
        q_THD,
        key_NBKD,
        value_NBKD,
        table_NM,
        rows_P4,
        out_THD,
        features.alibi_slopes,
        features.sinks,
        rows,
        first,
        tokens,
        table_NM.stride(0),
        log2_scale(features.scale_of(head_dim)),
        Q_STRIDE_T=q_THD.stride(0),
        Q_STRIDE_H=q_THD.stride(1),
        KV_HEADS=kv_heads,
        GROUP=heads // kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        BLOCK_P=max(_ROWS_AT_ONCE, matrix_block(rows)),
        BLOCK_D=matrix_block(head_dim),
        BLOCK_M=settings.block_m,
        BLOCK_N=settings.block_n,
        WINDOW=features.window or 0,
        SOFTCAP=features.softcap or 0.0,
        ALIBI=features.alibi_slopes is not None,
        SINKS=features.sinks is not None,
        num_warps=settings.num_warps,
        num_stages=settings.num_stages,
    )
