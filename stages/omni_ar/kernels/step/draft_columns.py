"""Fields of a row's drafts, and columns of a handoff that report on them, as constants of kernels."""

import triton
import triton.language as tl

from omni_ar.kernels.step import draft_state, handoff
from omni_ar.kernels.step.columns import ACTIVE, COLUMNS
from omni_ar.kernels.step.draft_state import DRAFT_FIELD_INDEX, DRAFT_FIELDS

CAP = tl.constexpr(DRAFT_FIELD_INDEX.cap)
RATE = tl.constexpr(DRAFT_FIELD_INDEX.rate)
PROPOSED = tl.constexpr(DRAFT_FIELD_INDEX.proposed)
OFFERED = tl.constexpr(DRAFT_FIELD_INDEX.offered)
FOUND = tl.constexpr(DRAFT_FIELD_INDEX.found)
VERIFIED = tl.constexpr(handoff.VERIFIED)
GAIN = tl.constexpr(handoff.GAIN)
DRAFT_COLUMNS = tl.constexpr(DRAFT_FIELDS)
RATE_ONE = tl.constexpr(draft_state.RATE_ONE)
RATE_SHIFT = tl.constexpr(draft_state.RATE_SHIFT)
RATE_KEPT = tl.constexpr((1 << draft_state.RATE_SHIFT) - 1)
LEAST_RATE = tl.constexpr(draft_state.LEAST_RATE)
COST_SHARE = tl.constexpr(draft_state.COST_SHARE)


@triton.jit
def draft_cost(costs_ptr, rows_ptr, fields_ptr, rows, HAS_COSTS: tl.constexpr, BLOCK_R: tl.constexpr):
    """The element of `DraftState.costs` for a batch of `rows` rows."""
    cost = tl.full([], 0, tl.int64)
    if HAS_COSTS:
        active = cost
        for first in range(0, rows, BLOCK_R):
            index = first + tl.arange(0, BLOCK_R)
            row = tl.load(rows_ptr + index, mask=index < rows, other=0)
            active += tl.sum(tl.load(fields_ptr + row * COLUMNS + ACTIVE, mask=index < rows, other=0))
        cost = tl.load(costs_ptr + active)
    return cost


@triton.jit
def worthwhile_drafts(cap, rate, cost, DRAFTS: tl.constexpr, ADAPTIVE: tl.constexpr):
    """The number of drafts that a row verifies, and their gain. See `draft_state.worthwhile_drafts`."""
    number, gain = cap, cap * RATE_ONE
    if ADAPTIVE:
        number, gain = cap * 0, cap * 0
        reached = rate
        for index in tl.static_range(DRAFTS):
            is_worth_it = (index < cap) & (rate >= LEAST_RATE) & (COST_SHARE * reached >= cost)
            number += is_worth_it.to(tl.int64)
            gain += tl.where(is_worth_it, reached - cost, 0)
            reached = reached * rate // RATE_ONE
    return number, gain
