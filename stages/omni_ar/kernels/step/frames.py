"""What code prediction reads of the rows, and where its frames go."""

import triton
import triton.language as tl

from omni_ar.kernels.step.columns import ACTIVE, COLUMNS, LAST, LENGTH, OUTPUTS


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["rows_ptr"])
def read_rows(rows_ptr, words_ptr, last_ptr, position_ptr, rows, BLOCK_R: tl.constexpr):
    """Of each row its newest token, and which frame of its request that token begins. One program takes BLOCK_R rows."""
    place = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = place < rows
    row_ptr = words_ptr + tl.load(rows_ptr + place, mask=inside, other=0) * COLUMNS
    tl.store(last_ptr + place, tl.load(row_ptr + LAST, mask=inside, other=0), mask=inside)
    tl.store(position_ptr + place, tl.load(row_ptr + OUTPUTS, mask=inside, other=0) - 1, mask=inside)


@triton.jit(do_not_specialize_on_alignment=["rows_ptr"])
def place_frame(
    rows_ptr,
    words_ptr,
    table_ptr,
    codes_ptr,
    codes_stride,
    group_stride,
    next_ptr,
    next_stride,
    pages_ptr,
    next_codes_ptr,
    TABLE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK_G: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """One program per row."""
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + place)
    at = tl.load(words_ptr + row * COLUMNS + LENGTH)
    active = tl.load(words_ptr + row * COLUMNS + ACTIVE)
    # The token that ends a row has no frame, and it may be the last that the table had room for.
    block = tl.load(table_ptr + row * TABLE + at // BLOCK_SIZE, mask=at // BLOCK_SIZE < TABLE, other=0)
    slot = (block * BLOCK_SIZE + at % BLOCK_SIZE) * active
    group = tl.arange(0, BLOCK_G)
    codes = tl.load(codes_ptr + place * codes_stride + group * group_stride, mask=group < GROUPS, other=0)
    tl.store(pages_ptr + slot * GROUPS + group, codes, mask=group < GROUPS)
    column = tl.arange(0, BLOCK_D)
    next_ = tl.load(next_ptr + place * next_stride + column, mask=column < WIDTH)
    tl.store(next_codes_ptr + row * WIDTH + column, next_, mask=column < WIDTH)
