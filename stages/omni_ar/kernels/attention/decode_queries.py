"""The queries of a program of decode attention: query heads of one key head, in one decode row or several.

A row of the stage with drafts has several positions, each a decode row of its own. They have the keys of their row in common.
"""

import triton
import triton.language as tl


@triton.jit
def positions_of(program, POSITIONS: tl.constexpr, TOGETHER: tl.constexpr):
    """The first decode row of a program's row, that of the program, and their number in it."""
    PARTS: tl.constexpr = (POSITIONS + TOGETHER - 1) // TOGETHER
    row = program // PARTS * POSITIONS
    before = program % PARTS * TOGETHER
    return row, row + before, tl.minimum(POSITIONS - before, TOGETHER)


@triton.jit
def lengths_of(lengths_ptr, positions, GROUP: tl.constexpr, TOGETHER: tl.constexpr, BLOCK_G: tl.constexpr):
    """The length of each query's decode row, or of all if it is one; the longest, and the shortest of those that have keys."""
    if TOGETHER == 1:
        lengths_g = tl.load(lengths_ptr).to(tl.int32)
        longest, shortest = lengths_g, lengths_g
    else:
        position_g, _ = queries_of(GROUP, TOGETHER, BLOCK_G)
        lengths_g = tl.load(lengths_ptr + position_g, mask=position_g < positions, other=0).to(tl.int32)
        longest = tl.max(lengths_g, 0)
        shortest = tl.min(tl.where(lengths_g > 0, lengths_g, longest), 0)
    return lengths_g, longest, shortest


@triton.jit
def queries_of(GROUP: tl.constexpr, TOGETHER: tl.constexpr, SIZE: tl.constexpr):
    """Each query's position, counted from the first of the program, and its number among the query heads of the key head."""
    offs_g = tl.arange(0, SIZE)
    position_g, member_g = tl.zeros_like(offs_g), offs_g
    if TOGETHER > 1:
        position_g, member_g = offs_g // GROUP, offs_g % GROUP
    return position_g, member_g


@triton.jit
def query_heads(
    first, head, positions, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, TOGETHER: tl.constexpr, SIZE: tl.constexpr
):
    """For the query heads of one key head in decode rows from `first` on: the number of each, counted over all decode rows, and
    whether it exists."""
    position_g, member_g = queries_of(GROUP, TOGETHER, SIZE)
    head_at = (first.to(tl.int64) * KV_HEADS + head) * GROUP + (position_g * (KV_HEADS * GROUP) + member_g)
    return head_at, tl.arange(0, SIZE) < GROUP * positions
