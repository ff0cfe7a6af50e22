"""Which work each row needs: a bit each, so that one load tells a kernel what it may skip. Every bit has its condition here alone.

`SamplingFlags` says the same of a batch, to the host.
"""

from omni.sampling_params import SamplingParams

RANDOM, TOP_K, TOP_P, MIN_P = 1, 2, 4, 8
REPETITION, PENALTY, BIAS, FORBIDDEN, BAD_WORDS, MIN_TOKENS = 16, 32, 64, 128, 256, 512
COUNTS, RECALLS = 1024, 2048
"""As in `SamplingFlags`. COUNTS: generated tokens are counted. RECALLS: the newest tokens are kept."""


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
    return needs
