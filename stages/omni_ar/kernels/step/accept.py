"""Accepts a step's tokens into the rows' state."""

import triton
import triton.language as tl

from omni_ar.kernels.sampling.constants import COUNTS, RECALLS, REPETITION, STOP_IDS, WORD_LENGTH
from omni_ar.kernels.step.columns import (
    ACTIVE,
    COLUMNS,
    COUNTED,
    FULL,
    IDS,
    LAST,
    LENGTH,
    LIMIT,
    NUM_TOKENS,
    OUTPUTS,
    RUNNING,
    STATUS,
    STOPPED,
)

_STOPS = tl.constexpr(32)
_NO_STOP = tl.constexpr(-2)


@triton.jit(do_not_specialize=["handoff_stride", "rows"], do_not_specialize_on_alignment=["rows_ptr"])
def accept_rows(
    rows_ptr,
    fields_ptr,
    stop_ids_ptr,
    out_ptr,
    out_stride,
    handoff_ptr,
    handoff_stride,
    handoff_row_stride,
    counter_ptr,
    rows,
    RING: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """One program for all rows, since it advances the counter that all rows read."""
    number = tl.load(counter_ptr)
    slot_ptr = handoff_ptr + (number % RING) * handoff_stride
    stop = tl.arange(0, _STOPS)[None, :]
    for first in range(0, rows, BLOCK_R):
        index = (first + tl.arange(0, BLOCK_R)).to(tl.int64)
        inside = index < rows
        row = tl.load(rows_ptr + index, mask=inside, other=0)
        row_ptr = fields_ptr + row * COLUMNS
        ids = tl.load(out_ptr + index * out_stride + IDS, mask=inside, other=0)
        active = tl.load(row_ptr + ACTIVE, mask=inside, other=0)
        outputs = tl.load(row_ptr + OUTPUTS, mask=inside, other=0) + active
        limit = tl.load(row_ptr + LIMIT, mask=inside, other=0)
        # Stop ids are padded with -1, so a row without a possible id stops too.
        stops = tl.load(
            stop_ids_ptr + row[:, None] * STOP_IDS + stop, mask=inside[:, None] & (stop < STOP_IDS), other=_NO_STOP
        )
        is_stop = tl.max((stops == ids[:, None]).to(tl.int32), axis=1) != 0
        status = tl.where(is_stop, STOPPED, tl.where(outputs >= limit, FULL, RUNNING)).to(tl.int64)
        tl.store(row_ptr + LAST, tl.maximum(ids, 0), mask=inside)
        tl.store(row_ptr + OUTPUTS, outputs, mask=inside)
        tl.store(row_ptr + ACTIVE, tl.where(status == RUNNING, active, 0), mask=inside)
        tl.store(row_ptr + COUNTED, active, mask=inside)
        tl.store(out_ptr + index * out_stride + STATUS, status, mask=inside)
        tl.store(out_ptr + index * out_stride + NUM_TOKENS, active, mask=inside)
        reported_ptr = slot_ptr + index * handoff_row_stride
        tl.store(reported_ptr + STATUS, status, mask=inside)
        tl.store(reported_ptr + NUM_TOKENS, active, mask=inside)
        tl.store(reported_ptr + IDS, ids, mask=inside)
    tl.debug_barrier()
    tl.store(counter_ptr, number + 1)


@triton.jit(do_not_specialize_on_alignment=["rows_ptr", "advance_ptr"])
def update_row(
    rows_ptr,
    fields_ptr,
    accepted_ptr,
    accepted_stride,
    advance_ptr,
    needs_ptr,
    seen_ptr,
    counts_ptr,
    recent_ptr,
    SEEN: tl.constexpr,
):
    """Updates length and history. A row without a counted token is unchanged, so a finished row may be in the batch
    several times."""
    index = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + index)
    count = tl.load(accepted_ptr + index * accepted_stride + NUM_TOKENS)
    if count > 0:
        token = tl.load(accepted_ptr + index * accepted_stride + IDS)
        length_ptr = fields_ptr + row * COLUMNS + LENGTH
        tl.store(length_ptr, tl.load(length_ptr) + tl.load(advance_ptr + index))
        needs = tl.load(needs_ptr + row).to(tl.int32)
        if ((needs & REPETITION) != 0) & (token >= 0):
            tl.store(seen_ptr + row * SEEN + token, 1)
        if ((needs & COUNTS) != 0) & (token >= 0):
            count_ptr = counts_ptr + row * SEEN + token
            tl.store(count_ptr, tl.load(count_ptr) + 1)
        if (needs & RECALLS) != 0:
            at = tl.arange(0, WORD_LENGTH)
            recent_row_ptr = recent_ptr + row * WORD_LENGTH
            next_ = tl.load(recent_row_ptr + at + 1, mask=at < WORD_LENGTH - 1, other=0)
            tl.debug_barrier()
            tl.store(recent_row_ptr + at, tl.where(at < WORD_LENGTH - 1, next_, token))
