"""Columns of `RowState.words` and the rows' status, as kernels name them."""

import triton.language as tl

from omni_ar.kernels.step import state
from omni_ar.kernels.step.status import RowStatus

LAST = tl.constexpr(state.LAST)
LENGTH = tl.constexpr(state.LENGTH)
DELTA = tl.constexpr(state.DELTA)
OUTPUTS = tl.constexpr(state.OUTPUTS)
LIMIT = tl.constexpr(state.LIMIT)
ACTIVE = tl.constexpr(state.ACTIVE)
COUNTED = tl.constexpr(state.COUNTED)
COLUMNS = tl.constexpr(state.COLUMNS)
RUNNING = tl.constexpr(int(RowStatus.RUNNING))
STOPPED = tl.constexpr(int(RowStatus.STOPPED))
FULL = tl.constexpr(int(RowStatus.FULL))
STOPPED_WITH_FRAME = tl.constexpr(int(RowStatus.STOPPED_WITH_FRAME))
FULL_WITH_FRAME = tl.constexpr(int(RowStatus.FULL_WITH_FRAME))
