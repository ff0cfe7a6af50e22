"""Inputs of decode rows with drafts, one program per position."""

import triton
import triton.language as tl

from omni_ar.kernels.step.columns import ACTIVE, COLUMNS, DELTA, LAST, LENGTH, LIMIT, OUTPUTS
from omni_ar.kernels.step.draft_columns import (
    CAP,
    DRAFT_COLUMNS,
    OFFERED,
    PROPOSED,
    RATE,
    draft_cost,
    worthwhile_drafts,
)

_BLOCKS_AT_ONCE = tl.constexpr(256)


@triton.jit(do_not_specialize=["positions_stride", "max_blocks", "vocab"], do_not_specialize_on_alignment=["rows_ptr"])
def prepare_positions(
    rows_ptr,
    fields_ptr,
    table_ptr,
    drafts_ptr,
    draft_fields_ptr,
    costs_ptr,
    ids_ptr,
    lengths_ptr,
    slots_ptr,
    positions_ptr,
    positions_stride,
    out_table_ptr,
    max_blocks,
    vocab,
    POSITIONS: tl.constexpr,
    DRAFTS: tl.constexpr,
    ADAPTIVE: tl.constexpr,
    HAS_COSTS: tl.constexpr,
    AXES: tl.constexpr,
    TABLE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """Program (i, j) writes the inputs of position j of row `rows[i]` to entry `i * POSITIONS + j`. drafts: `[N, DRAFTS]`."""
    index, at = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.load(rows_ptr + index)
    row_ptr, draft_ptr = fields_ptr + row * COLUMNS, draft_fields_ptr + row * DRAFT_COLUMNS
    kept, active = tl.load(row_ptr + LENGTH), tl.load(row_ptr + ACTIVE)
    cost = draft_cost(costs_ptr, rows_ptr, fields_ptr, tl.num_programs(0), HAS_COSTS, BLOCK_R)
    wanted, _ = worthwhile_drafts(tl.load(draft_ptr + CAP), tl.load(draft_ptr + RATE), cost, DRAFTS, ADAPTIVE)
    remaining = tl.minimum(tl.load(row_ptr + LIMIT) - tl.load(row_ptr + OUTPUTS), POSITIONS) - 1
    # A plugin's drafter may give ids that the vocabulary lacks: no embedding of theirs may be read.
    is_id, ids = active >= 0, active * 0  # true, and 0 of its type
    for number in tl.static_range(POSITIONS - 1):
        draft = tl.load(drafts_ptr + row * DRAFTS + number)
        is_id = is_id & (draft >= 0) & (draft < vocab)
        ids += is_id.to(tl.int64)
    proposed = tl.minimum(tl.load(draft_ptr + PROPOSED), ids)
    offered = tl.maximum(tl.minimum(tl.minimum(proposed, wanted), remaining), 0) * active
    # Only this program writes it, and no other reads it.
    tl.store(draft_ptr + OFFERED, offered, mask=at == 0)
    drafted = (at > 0) & (at <= offered)
    live = tl.where(at == 0, active, drafted.to(tl.int64))
    # The positions without a draft are all alike. They repeat the newest token if tokens choose experts, since equal tokens read no
    # further ones; else they attend to no key.
    used = (at == 0) | drafted | HAS_COSTS
    token = tl.load(row_ptr + LAST)
    if DRAFTS:
        draft = tl.load(drafts_ptr + row * DRAFTS + at - 1, mask=drafted, other=0)
        token = tl.where(drafted, draft, tl.where(used, token, 0))
    out = index * POSITIONS + at
    tl.store(ids_ptr + out, token)
    position = kept + tl.where(drafted, at, 0)
    length = tl.where(used, position + active, 0)
    tl.store(lengths_ptr + out, length)
    # A finished row may be as long as its table; it writes to the null block.
    block = tl.load(table_ptr + row * TABLE + position // BLOCK_SIZE, mask=position // BLOCK_SIZE < TABLE, other=0)
    tl.store(slots_ptr + out, (block * BLOCK_SIZE + position % BLOCK_SIZE) * live)
    rotary = tl.where(used, position + tl.load(row_ptr + DELTA), 0)
    for axis in tl.static_range(AXES):
        tl.store(positions_ptr + axis * positions_stride + out, rotary)
    # Attention reads the blocks of a row's first position for all.
    longest = length + tl.where(at == 0, offered, 0)
    blocks = tl.minimum((longest + BLOCK_SIZE - 1) // BLOCK_SIZE, max_blocks).to(tl.int32)
    for first in range(0, blocks, _BLOCKS_AT_ONCE):
        block_at = first + tl.arange(0, _BLOCKS_AT_ONCE)
        values = tl.load(table_ptr + row * TABLE + block_at, mask=block_at < blocks)
        tl.store(out_table_ptr + out * TABLE + block_at, values, mask=block_at < blocks)
