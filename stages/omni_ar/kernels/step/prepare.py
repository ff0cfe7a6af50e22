"""Inputs of decode rows, one program per row."""

import triton
import triton.language as tl

from omni_ar.kernels.step.columns import ACTIVE, COLUMNS, DELTA, LAST, LENGTH

_BLOCKS_AT_ONCE = tl.constexpr(256)


@triton.jit(do_not_specialize=["positions_stride", "max_blocks"], do_not_specialize_on_alignment=["rows_ptr"])
def prepare_row(
    rows_ptr,
    fields_ptr,
    table_ptr,
    next_codes_ptr,
    ids_ptr,
    lengths_ptr,
    slots_ptr,
    positions_ptr,
    positions_stride,
    out_table_ptr,
    out_codes_ptr,
    max_blocks,
    AXES: tl.constexpr,
    TABLE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Writes the inputs of row `rows[index]` to `index` of `ids`, `lengths`, `slots`, each axis of `positions`,
    `out_table` and `out_codes`. next_codes: `[rows, WIDTH]`, the codes' part of the next input; WIDTH 0 for none.
    max_blocks: blocks of a table.
    """
    index = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + index)
    row_ptr = fields_ptr + row * COLUMNS
    kept, active = tl.load(row_ptr + LENGTH), tl.load(row_ptr + ACTIVE)
    tl.store(ids_ptr + index, tl.load(row_ptr + LAST))
    tl.store(lengths_ptr + index, kept + active)
    # A finished row may be as long as its table; it writes to the null block.
    block = tl.load(table_ptr + row * TABLE + kept // BLOCK_SIZE, mask=kept // BLOCK_SIZE < TABLE, other=0)
    tl.store(slots_ptr + index, (block * BLOCK_SIZE + kept % BLOCK_SIZE) * active)
    position = kept + tl.load(row_ptr + DELTA)
    for axis in tl.static_range(AXES):
        tl.store(positions_ptr + axis * positions_stride + index, position)
    used = tl.minimum((kept + active + BLOCK_SIZE - 1) // BLOCK_SIZE, max_blocks).to(tl.int32)
    for first in range(0, used, _BLOCKS_AT_ONCE):
        at = first + tl.arange(0, _BLOCKS_AT_ONCE)
        tl.store(
            out_table_ptr + index * TABLE + at, tl.load(table_ptr + row * TABLE + at, mask=at < used), mask=at < used
        )
    if WIDTH:
        column = tl.arange(0, BLOCK_D)
        codes = tl.load(next_codes_ptr + row * WIDTH + column, mask=column < WIDTH)
        tl.store(out_codes_ptr + index * WIDTH + column, codes, mask=column < WIDTH)
