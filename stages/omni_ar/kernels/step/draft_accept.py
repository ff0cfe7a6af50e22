"""Accepts the verified drafts of a step into the rows' state."""

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
from omni_ar.kernels.step.draft_columns import (
    CAP,
    DRAFT_COLUMNS,
    FOUND,
    GAIN,
    OFFERED,
    PROPOSED,
    RATE,
    RATE_KEPT,
    RATE_ONE,
    RATE_SHIFT,
    VERIFIED,
    draft_cost,
    worthwhile_drafts,
)

_STOPS = tl.constexpr(32)
_NO_STOP = tl.constexpr(-2)


@triton.jit(do_not_specialize=["handoff_stride", "rows"], do_not_specialize_on_alignment=["rows_ptr"])
def accept_draft_rows(
    rows_ptr,
    fields_ptr,
    draft_fields_ptr,
    drafts_ptr,
    costs_ptr,
    stop_ids_ptr,
    sampled_ptr,
    out_ptr,
    handoff_ptr,
    handoff_stride,
    counter_ptr,
    rows,
    RING: tl.constexpr,
    POSITIONS: tl.constexpr,
    DRAFTS: tl.constexpr,
    WIDTH: tl.constexpr,
    ADAPTIVE: tl.constexpr,
    HAS_COSTS: tl.constexpr,
    RAN: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """One program for all rows, since it advances the counter that all rows read. WIDTH: columns of a row of `out` and of a slot of
    the handoff."""
    number = tl.load(counter_ptr)
    slot_ptr = handoff_ptr + (number % RING) * handoff_stride
    cost = draft_cost(costs_ptr, rows_ptr, fields_ptr, rows, HAS_COSTS, BLOCK_R)
    tl.debug_barrier()  # the rows that end below were active
    stop = tl.arange(0, _STOPS)[None, :]
    for first in range(0, rows, BLOCK_R):
        index = (first + tl.arange(0, BLOCK_R)).to(tl.int64)
        inside = index < rows
        row = tl.load(rows_ptr + index, mask=inside, other=0)
        row_ptr, draft_ptr = fields_ptr + row * COLUMNS, draft_fields_ptr + row * DRAFT_COLUMNS
        active = tl.load(row_ptr + ACTIVE, mask=inside, other=0)
        before = tl.load(row_ptr + OUTPUTS, mask=inside, other=0)
        limit = tl.load(row_ptr + LIMIT, mask=inside, other=0)
        cap = tl.load(draft_ptr + CAP, mask=inside, other=0)
        rate = tl.load(draft_ptr + RATE, mask=inside, other=0)
        offered = tl.load(draft_ptr + OFFERED, mask=inside, other=0)
        proposed = tl.load(draft_ptr + PROPOSED, mask=inside, other=0)
        tried = tl.maximum(offered, tl.minimum(proposed, 1)) * active
        stops = tl.load(
            stop_ids_ptr + row[:, None] * STOP_IDS + stop, mask=inside[:, None] & (stop < STOP_IDS), other=_NO_STOP
        )
        reported_ptr, accepted_ptr = slot_ptr + index * WIDTH, out_ptr + index * WIDTH
        going, matching = inside, inside
        count = active * 0
        last = active * 0
        is_stop = active * 0
        for at in tl.static_range(POSITIONS):
            ids = tl.load(sampled_ptr + index * POSITIONS + at, mask=inside, other=0)
            ends = tl.max((stops == ids[:, None]).to(tl.int32), axis=1)
            count = tl.where(going, at + 1, count)
            last = tl.where(going, ids, last)
            is_stop = tl.where(going, ends, is_stop)
            if at < DRAFTS:
                drafted = tl.load(drafts_ptr + row * DRAFTS + at, mask=inside, other=0)
                is_tried = matching & (at < tried)
                matching = is_tried & (ids == drafted)
                moved = (rate * RATE_KEPT + tl.where(matching, RATE_ONE, 0)) >> RATE_SHIFT
                rate = tl.where(is_tried, moved, rate)
            # After the last draft, `offered` is reached.
            going = going & matching & (at < offered) & (ends == 0) & (before + at + 1 < limit)
            tl.store(accepted_ptr + IDS + at, ids, mask=inside)
            tl.store(reported_ptr + IDS + at, ids, mask=inside)
        count = count * active
        # Stop ids are padded with -1, so a row without a possible id stops too.
        outputs = before + count
        status = tl.where(is_stop != 0, STOPPED, tl.where(outputs >= limit, FULL, RUNNING)).to(tl.int64)
        tl.store(row_ptr + LAST, tl.maximum(last, 0), mask=inside)
        tl.store(row_ptr + OUTPUTS, outputs, mask=inside)
        tl.store(row_ptr + ACTIVE, tl.where(status == RUNNING, active, 0), mask=inside)
        tl.store(row_ptr + COUNTED, active, mask=inside)
        tl.store(draft_ptr + RATE, rate, mask=inside)
        tl.store(draft_ptr + PROPOSED, active * 0, mask=inside)
        tl.store(draft_ptr + OFFERED, active * 0, mask=inside)
        found = tl.minimum(proposed, 1) if RAN else tl.load(draft_ptr + FOUND, mask=inside, other=0)
        tl.store(draft_ptr + FOUND, found, mask=inside)
        _, gain = worthwhile_drafts(cap, rate, cost, DRAFTS, ADAPTIVE)
        if ADAPTIVE:
            # A drafter that found none will hardly have any in the next step.
            gain = tl.where(found > 0, gain, 0)
        tl.store(accepted_ptr + STATUS, status, mask=inside)
        tl.store(accepted_ptr + NUM_TOKENS, count, mask=inside)
        tl.store(accepted_ptr + WIDTH + VERIFIED, offered, mask=inside)
        tl.store(accepted_ptr + WIDTH + GAIN, gain, mask=inside)
        tl.store(reported_ptr + STATUS, status, mask=inside)
        tl.store(reported_ptr + NUM_TOKENS, count, mask=inside)
        tl.store(reported_ptr + WIDTH + VERIFIED, offered, mask=inside)
        tl.store(reported_ptr + WIDTH + GAIN, gain, mask=inside)
    tl.debug_barrier()
    tl.store(counter_ptr, number + 1)


@triton.jit(do_not_specialize_on_alignment=["rows_ptr", "advance_ptr"])
def record_row(
    rows_ptr,
    fields_ptr,
    accepted_ptr,
    advance_ptr,
    needs_ptr,
    seen_ptr,
    counts_ptr,
    recent_ptr,
    text_ptr,
    POSITIONS: tl.constexpr,
    WIDTH: tl.constexpr,
    SEEN: tl.constexpr,
    TEXT: tl.constexpr,
):
    """Updates length, history and text. A row without an accepted token is unchanged, so a finished row may be in the batch several
    times. WIDTH: columns of a row of `accepted`. TEXT: columns of a row's text."""
    index = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + index)
    accepted_row_ptr = accepted_ptr + index * WIDTH
    count = tl.load(accepted_row_ptr + NUM_TOKENS)
    if count > 0:
        length_ptr = fields_ptr + row * COLUMNS + LENGTH
        end = tl.load(length_ptr) + tl.load(advance_ptr + index)
        needs = tl.load(needs_ptr + row).to(tl.int32)
        for at in tl.static_range(POSITIONS):
            token = tl.load(accepted_row_ptr + IDS + at)
            counts = at < count
            tl.store(text_ptr + row * TEXT + end + at, token.to(tl.int32), mask=counts & (end + at < TEXT - 1))
            counts = counts & (token >= 0)
            tl.store(seen_ptr + row * SEEN + token, 1, mask=counts & ((needs & REPETITION) != 0))
            adds = counts & ((needs & COUNTS) != 0)
            count_ptr = counts_ptr + row * SEEN + token
            number = tl.load(count_ptr, mask=adds, other=0)
            tl.debug_barrier()
            tl.store(count_ptr, number + 1, mask=adds)
            tl.debug_barrier()  # a token may occur twice
        if (needs & RECALLS) != 0:
            letter = tl.arange(0, WORD_LENGTH)
            recent_row_ptr = recent_ptr + row * WORD_LENGTH
            source = letter + count
            kept = tl.load(recent_row_ptr + source, mask=source < WORD_LENGTH, other=0)
            fresh = tl.load(accepted_row_ptr + IDS + source - WORD_LENGTH, mask=source >= WORD_LENGTH, other=0)
            tl.debug_barrier()
            tl.store(recent_row_ptr + letter, tl.where(source < WORD_LENGTH, kept, fresh))
        tl.debug_barrier()
        tl.store(length_ptr, end + count - 1)
