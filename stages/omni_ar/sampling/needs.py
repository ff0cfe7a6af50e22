"""Which work each row needs: a bit each, so that one load tells a kernel what it may skip. Every bit has its condition here alone.

`SamplingFlags` says the same of a batch, to the host.
"""

from omni.sampling import SamplingParams

RANDOM, TOP_K, TOP_P, MIN_P = 1, 2, 4, 8
REPETITION, PENALTY, BIAS, FORBIDDEN, BAD_WORDS, MIN_TOKENS = 16, 32, 64, 128, 256, 512
COUNTS, RECALLS, ENDLESS = 1024, 2048, 4096
"""As in `SamplingFlags`. COUNTS: generated tokens are counted. RECALLS: the newest tokens are kept. ENDLESS: no frame ends it."""

CODES = 13
CODE_RANDOM, CODE_TOP_K, CODE_TOP_P = RANDOM << CODES, TOP_K << CODES, TOP_P << CODES
"""Of the codes of a frame after the first, so many bits up."""


def needs_of(p: SamplingParams) -> int:
    """Bits of a row with these parameters, as `resolve_sampling` gives them."""
    needs = 0
    if p.temperature != 0:
        needs |= RANDOM
    if p.top_k != 0:
        needs |= TOP_K
    if p.top_p != 1:
        needs |= TOP_P
    if p.min_p != 0:
        needs |= MIN_P
    if p.repetition_penalty != 1:
        needs |= REPETITION
    if p.min_tokens != 0:
        needs |= MIN_TOKENS
    if p.frequency_penalty != 0 or p.presence_penalty != 0:
        needs |= PENALTY | COUNTS
    if p.logit_bias:
        needs |= BIAS
    if p.suppress_token_ids or p.allowed_token_ids:
        needs |= FORBIDDEN
    for word in p.bad_words_ids or ():
        needs |= FORBIDDEN if len(word) == 1 else BAD_WORDS | RECALLS
    if p.processors:
        needs |= COUNTS | RECALLS
    if p.ignore_eos:
        needs |= ENDLESS
    if p.code_temperature != 0:
        needs |= CODE_RANDOM
    if p.code_top_k != 0:
        needs |= CODE_TOP_K
    if p.code_top_p != 1:
        needs |= CODE_TOP_P
    return needs
