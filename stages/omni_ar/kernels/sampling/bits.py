"""`omni_ar.sampling.needs` and `bounds`, as kernels name them."""

import triton.language as tl

from omni_ar.sampling import bounds, needs

RANDOM = tl.constexpr(needs.RANDOM)
TOP_K = tl.constexpr(needs.TOP_K)
TOP_P = tl.constexpr(needs.TOP_P)
MIN_P = tl.constexpr(needs.MIN_P)
SELECTS = tl.constexpr(needs.TOP_K | needs.TOP_P | needs.MIN_P)
REPETITION = tl.constexpr(needs.REPETITION)
PENALTY = tl.constexpr(needs.PENALTY)
BIAS = tl.constexpr(needs.BIAS)
FORBIDDEN = tl.constexpr(needs.FORBIDDEN)
BAD_WORDS = tl.constexpr(needs.BAD_WORDS)
MIN_TOKENS = tl.constexpr(needs.MIN_TOKENS)
SOME_IDS = tl.constexpr(needs.BIAS | needs.BAD_WORDS | needs.MIN_TOKENS)
COUNTS = tl.constexpr(needs.COUNTS)
ENDLESS = tl.constexpr(needs.ENDLESS)
CODES = tl.constexpr(needs.CODES)
RECALLS = tl.constexpr(needs.RECALLS)

BIASED_IDS = tl.constexpr(bounds.MAX_BIASED_IDS)
WORDS = tl.constexpr(bounds.MAX_BAD_WORDS)
WORD_LENGTH = tl.constexpr(bounds.MAX_BAD_WORD_LENGTH)
STOP_IDS = tl.constexpr(bounds.MAX_STOP_IDS + 1)
