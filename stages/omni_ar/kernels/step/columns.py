"""Fields and statuses of a row, and columns of a handoff, as constants of kernels."""

import triton.language as tl

from omni_ar.kernels.step import handoff
from omni_ar.kernels.step.state import FIELD_INDEX, ROW_FIELDS
from omni_ar.kernels.step.status import RowStatus

LAST = tl.constexpr(FIELD_INDEX.last)
LENGTH = tl.constexpr(FIELD_INDEX.length)
DELTA = tl.constexpr(FIELD_INDEX.delta)
OUTPUTS = tl.constexpr(FIELD_INDEX.outputs)
LIMIT = tl.constexpr(FIELD_INDEX.limit)
ACTIVE = tl.constexpr(FIELD_INDEX.active)
COUNTED = tl.constexpr(FIELD_INDEX.counted)
COLUMNS = tl.constexpr(ROW_FIELDS)
STATUS = tl.constexpr(handoff.STATUS)
NUM_TOKENS = tl.constexpr(handoff.NUM_TOKENS)
IDS = tl.constexpr(handoff.IDS)
RUNNING = tl.constexpr(int(RowStatus.RUNNING))
STOPPED = tl.constexpr(int(RowStatus.STOPPED))
FULL = tl.constexpr(int(RowStatus.FULL))
STOPPED_WITH_FRAME = tl.constexpr(int(RowStatus.STOPPED_WITH_FRAME))
FULL_WITH_FRAME = tl.constexpr(int(RowStatus.FULL_WITH_FRAME))
