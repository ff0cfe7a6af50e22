"""Constants of `omni_ar.kernels.sampling.state` as `tl.constexpr`."""

import triton.language as tl

from omni_ar.kernels.sampling import state
from omni_ar.kernels.sampling.state import Need

RANDOM = tl.constexpr(Need.RANDOM)
SELECTS = tl.constexpr(Need.SELECTS)
REPETITION = tl.constexpr(Need.REPETITION)
PENALTY = tl.constexpr(Need.PENALTY)
BIAS = tl.constexpr(Need.BIAS)
FORBIDDEN = tl.constexpr(Need.FORBIDDEN)
BAD_WORDS = tl.constexpr(Need.BAD_WORDS)
MIN_TOKENS = tl.constexpr(Need.MIN_TOKENS)
SOME_IDS = tl.constexpr(Need.BIAS | Need.BAD_WORDS | Need.MIN_TOKENS)
COUNTS = tl.constexpr(Need.COUNTS)
RECALLS = tl.constexpr(Need.RECALLS)
ENDLESS = tl.constexpr(Need.ENDLESS)
CODES = tl.constexpr(Need.CODES)

ANYTHING = tl.constexpr(state.ANYTHING)
MAX_LOGIT = tl.constexpr(state.MAX_LOGIT)
BIASED_IDS = tl.constexpr(state.MAX_BIASED_IDS)
WORDS = tl.constexpr(state.MAX_BAD_WORDS)
WORD_LENGTH = tl.constexpr(state.MAX_BAD_WORD_LENGTH)
STOP_IDS = tl.constexpr(state.MAX_STOP_IDS + 1)
