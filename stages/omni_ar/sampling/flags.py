"""Which work a batch needs, known to the host."""

from collections.abc import Iterable
from dataclasses import dataclass

from omni.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingFlags:
    """Which work at least one row of a batch needs. A needless flag costs time, a missing one changes tokens.

    any_penalty: frequency or presence. any_forbidden: suppressed or not allowed ids, or bad words of one token; any_bad_words:
    of several. processors: names of logits processors.
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
    processors: frozenset[str] = frozenset()

    @property
    def counts(self) -> bool:
        """Whether generated tokens are counted."""
        return self.any_penalty or bool(self.processors)

    @property
    def recalls(self) -> bool:
        """Whether the newest tokens are kept."""
        return self.any_bad_words or bool(self.processors)

    @property
    def may_rule_out_all(self) -> bool:
        """Whether a row may be left with no id that is possible."""
        return self.any_forbidden or self.any_bad_words or self.any_min_tokens or bool(self.processors)


def flags_of(rows: Iterable[SamplingParams]) -> SamplingFlags:
    """What these rows need, of parameters as `resolve_sampling` gives them."""
    random = top_k = top_p = min_p = repetition = penalty = bias = forbidden = bad_words = min_tokens = False
    processors: frozenset[str] = frozenset()
    for p in rows:
        random |= p.temperature != 0
        top_k |= p.top_k != 0
        top_p |= p.top_p != 1
        min_p |= p.min_p != 0
        repetition |= p.repetition_penalty != 1
        penalty |= p.frequency_penalty != 0 or p.presence_penalty != 0
        min_tokens |= p.min_tokens != 0
        bias |= bool(p.logit_bias)
        forbidden |= bool(p.suppress_token_ids or p.allowed_token_ids)
        if p.bad_words_ids:
            forbidden |= any(len(word) == 1 for word in p.bad_words_ids)
            bad_words |= any(len(word) > 1 for word in p.bad_words_ids)
        if p.processors:
            processors |= p.processors.keys()
    return SamplingFlags(
        any_random=random,
        any_top_k=top_k,
        any_top_p=top_p,
        any_min_p=min_p,
        any_repetition=repetition,
        any_penalty=penalty,
        any_bias=bias,
        any_forbidden=forbidden,
        any_bad_words=bad_words,
        any_min_tokens=min_tokens,
        processors=processors,
    )
