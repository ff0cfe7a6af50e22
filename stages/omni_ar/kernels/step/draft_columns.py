"""Fields of a row's drafts, and columns of a handoff that report on them, as constants of kernels."""

import triton
import triton.language as tl

from omni_ar.kernels.step import draft_state, handoff
from omni_ar.kernels.step.draft_state import DRAFT_FIELD_INDEX, DRAFT_FIELDS

CAP = tl.constexpr(DRAFT_FIELD_INDEX.cap)
RATE = tl.constexpr(DRAFT_FIELD_INDEX.rate)
PROPOSED = tl.constexpr(DRAFT_FIELD_INDEX.proposed)
OFFERED = tl.constexpr(DRAFT_FIELD_INDEX.offered)
VERIFIED = tl.constexpr(handoff.VERIFIED)
WORTHWHILE = tl.constexpr(handoff.WORTHWHILE)
DRAFT_COLUMNS = tl.constexpr(DRAFT_FIELDS)
RATE_ONE = tl.constexpr(draft_state.RATE_ONE)
RATE_SHIFT = tl.constexpr(draft_state.RATE_SHIFT)
RATE_KEPT = tl.constexpr((1 << draft_state.RATE_SHIFT) - 1)
LEAST_RATE = tl.constexpr(draft_state.LEAST_RATE)


@triton.jit
def wanted_drafts(cap, rate, DRAFTS: tl.constexpr, ADAPTIVE: tl.constexpr, FURTHER_RATE: tl.constexpr):
    """The number of drafts that a row's rate is worth verifying."""
    wanted = cap
    if ADAPTIVE:
        wanted = cap * 0
        reached = rate
        for index in tl.static_range(DRAFTS):
            wanted += ((rate >= LEAST_RATE) & (reached >= FURTHER_RATE) & (index < cap)).to(tl.int64)
            reached = reached * rate // RATE_ONE
    return wanted
