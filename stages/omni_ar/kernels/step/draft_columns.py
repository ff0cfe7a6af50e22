"""Fields of a row's drafts, and columns of a handoff that report on them, as constants of kernels."""

import triton
import triton.language as tl

from omni_ar.kernels.step import draft_state, handoff
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


@triton.jit
def wanted_drafts(cap, rate, ADAPTIVE: tl.constexpr):
    """The number of drafts that a row with this rate verifies."""
    wanted = cap
    if ADAPTIVE:
        wanted = tl.where(rate >= LEAST_RATE, cap, 0)
    return wanted


@triton.jit
def reported_gain(cap, rate, found, DRAFTS: tl.constexpr, ADAPTIVE: tl.constexpr):
    """`DraftHandoffFields.gain`."""
    gain = cap * RATE_ONE
    if ADAPTIVE:
        gain = cap * 0
        reached = rate
        for index in tl.static_range(DRAFTS):
            gain += tl.where(index < cap, reached, 0)
            reached = reached * rate // RATE_ONE
        # A drafter that found none will hardly have any in the next step.
        gain = tl.where((rate >= LEAST_RATE) & (found > 0), gain, 0)
    return gain
