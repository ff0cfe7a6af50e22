"""The inputs of code prediction, and the slots of its frames."""

import triton
import triton.language as tl

from omni_ar.kernels.sampling.constants import ENDLESS
from omni_ar.kernels.step.columns import (
    ACTIVE,
    COLUMNS,
    COUNTED,
    FULL,
    FULL_WITH_FRAME,
    LAST,
    LENGTH,
    OUTPUTS,
    STATUS,
    STOPPED,
    STOPPED_WITH_FRAME,
)


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["rows_ptr"])
def read_rows(rows_ptr, fields_ptr, last_ptr, position_ptr, rows, BLOCK_R: tl.constexpr):
    """Each row's newest token, and the number of the frame that it begins. One program handles BLOCK_R rows."""
    index = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = index < rows
    row_ptr = fields_ptr + tl.load(rows_ptr + index, mask=inside, other=0) * COLUMNS
    tl.store(last_ptr + index, tl.load(row_ptr + LAST, mask=inside, other=0), mask=inside)
    tl.store(position_ptr + index, tl.load(row_ptr + OUTPUTS, mask=inside, other=0) - 1, mask=inside)


@triton.jit(do_not_specialize_on_alignment=["rows_ptr"])
def place_frame(
    rows_ptr,
    fields_ptr,
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
    index = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + index)
    at = tl.load(fields_ptr + row * COLUMNS + LENGTH)
    counted = tl.load(fields_ptr + row * COLUMNS + COUNTED)
    # For a row that finished earlier, this is the position of its last frame, or past the table.
    block = tl.load(table_ptr + row * TABLE + at // BLOCK_SIZE, mask=at // BLOCK_SIZE < TABLE, other=0)
    slot = (block * BLOCK_SIZE + at % BLOCK_SIZE) * counted
    group = tl.arange(0, BLOCK_G)
    codes = tl.load(codes_ptr + index * codes_stride + group * group_stride, mask=group < GROUPS, other=0)
    tl.store(pages_ptr + slot * GROUPS + group, codes, mask=group < GROUPS)
    column = tl.arange(0, BLOCK_D)
    next_ = tl.load(next_ptr + index * next_stride + column, mask=column < WIDTH)
    tl.store(next_codes_ptr + row * WIDTH + column, next_, mask=column < WIDTH)


@triton.jit(do_not_specialize=["handoff_stride", "code"], do_not_specialize_on_alignment=["rows_ptr"])
def end_row(
    rows_ptr,
    fields_ptr,
    needs_ptr,
    min_tokens_ptr,
    codes_ptr,
    codes_stride,
    group_stride,
    handoff_ptr,
    handoff_stride,
    handoff_row_stride,
    counter_ptr,
    code,
    RING: tl.constexpr,
    END_GROUPS: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK_G: tl.constexpr,
):
    """One program per row. The pending handoff is in the slot before the counter's: one field of a row is read back
    from host memory."""
    index = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + index)
    row_ptr = fields_ptr + row * COLUMNS
    # The counter may be 0, and a remainder has the sign of the dividend.
    slot = (tl.load(counter_ptr) + RING - 1) % RING
    reported_ptr = handoff_ptr + slot * handoff_stride + index * handoff_row_stride
    status, counted = tl.load(reported_ptr + STATUS), tl.load(row_ptr + COUNTED) != 0
    group = tl.arange(0, BLOCK_G)
    codes = tl.load(codes_ptr + index * codes_stride + group * group_stride, mask=group < GROUPS, other=0)
    others = ((codes != code) & (group < GROUPS)).to(tl.int32)
    early = tl.load(row_ptr + OUTPUTS) - 1 < tl.load(min_tokens_ptr + row)
    endless = (tl.load(needs_ptr + row) & ENDLESS) != 0
    may_end = counted & (early == 0) & (endless == 0) & (status != STOPPED)
    ends = may_end & (tl.sum(tl.where(group < END_GROUPS, others, 0)) == 0)
    tl.store(row_ptr + ACTIVE, 0, mask=ends)
    ended = tl.where(tl.sum(others) == 0, STOPPED, STOPPED_WITH_FRAME)
    status = tl.where(status == FULL, FULL_WITH_FRAME, status)
    tl.store(reported_ptr + STATUS, tl.where(ends, ended, status), mask=counted)
