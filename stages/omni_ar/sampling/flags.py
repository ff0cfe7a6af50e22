"""Which work a batch needs, known to the host."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from omni.sampling import SamplingParams
from omni_ar.sampling.needs import (
    BAD_WORDS,
    BIAS,
    CODE_RANDOM,
    CODE_TOP_K,
    CODE_TOP_P,
    FORBIDDEN,
    MIN_P,
    MIN_TOKENS,
    PENALTY,
    RANDOM,
    REPETITION,
    TOP_K,
    TOP_P,
    needs_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingFlags:
    """Which work at least one row of a batch needs. A needless flag costs time, a missing one changes tokens.

    any_penalty: frequency or presence. any_forbidden: suppressed or not allowed ids, or bad words of one token; any_bad_words:
    of several. any_code_...: of the codes of a frame after the first. processors: names of logits processors.
    """

    any_random: bool = False
    any_top_k: bool = False
    any_top_p: bool = False
    any_min_p: bool = False
    any_repetition: bool = False
    any_penalty: bool = False
    any_bias: bool = False
    any_forbidden: bool = False
    any_bad_words: bool = False
    any_min_tokens: bool = False
    any_code_random: bool = False
    any_code_top_k: bool = False
    any_code_top_p: bool = False
    processors: frozenset[str] = frozenset()

    @property
    def counts(self) -> bool:
        """Whether generated tokens are counted."""
        return self.any_penalty or bool(self.processors)

    @property
    def recalls(self) -> bool:
        """Whether the newest tokens are kept."""
        return self.any_bad_words or bool(self.processors)


_BITS = {
    "any_random": RANDOM,
    "any_top_k": TOP_K,
    "any_top_p": TOP_P,
    "any_min_p": MIN_P,
    "any_repetition": REPETITION,
    "any_penalty": PENALTY,
    "any_bias": BIAS,
    "any_forbidden": FORBIDDEN,
    "any_bad_words": BAD_WORDS,
    "any_min_tokens": MIN_TOKENS,
    "any_code_random": CODE_RANDOM,
    "any_code_top_k": CODE_TOP_K,
    "any_code_top_p": CODE_TOP_P,
}
"""What a field is true for, of a row's needs."""

EVERYTHING = SamplingFlags(**dict.fromkeys(_BITS, True), processors=frozenset())
"""What any rows may need, but logits processors: of a step that is captured before there are rows."""


def flags_of(rows: Iterable[SamplingParams]) -> SamplingFlags:
    """What these rows need, of parameters as `resolve_sampling` gives them."""
    needs = 0
    processors: frozenset[str] = frozenset()
    for p in rows:
        needs |= needs_of(p)
        if p.processors:
            processors = processors.union(p.processors)
    return _flags(needs, processors)


@lru_cache(256)
def _flags(needs: int, processors: frozenset[str]) -> SamplingFlags:
    wanted = {field: bool(needs & bit) for field, bit in _BITS.items()}
    return SamplingFlags(**wanted, processors=processors)
