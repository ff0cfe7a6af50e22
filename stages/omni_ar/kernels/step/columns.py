"""`omni_ar.run.state`'s words, as kernels name them."""

import triton.language as tl

from omni_ar.run import state

LAST = tl.constexpr(state.LAST)
LENGTH = tl.constexpr(state.LENGTH)
DELTA = tl.constexpr(state.DELTA)
OUTPUTS = tl.constexpr(state.OUTPUTS)
LIMIT = tl.constexpr(state.LIMIT)
ACTIVE = tl.constexpr(state.ACTIVE)
COUNTED = tl.constexpr(state.COUNTED)
COLUMNS = tl.constexpr(state.COLUMNS)
RUNNING = tl.constexpr(state.RUNNING)
STOPPED = tl.constexpr(state.STOPPED)
FULL = tl.constexpr(state.FULL)
ENDED = tl.constexpr(state.ENDED)
FILLED = tl.constexpr(state.FILLED)
