"""The sampling work of a row, as bits for the device, and of a batch, as flags for the host."""

from collections.abc import Iterable
from operator import attrgetter

from omni.sampling import PARAMETERS, SamplingParams
from omni_ar.kernels.sampling.state import COLUMNS, Need, SamplingFlags

_COLUMNS = {name: column for name, column in COLUMNS.items() if column.need}
_values = attrgetter(*_COLUMNS)
_OFF_AND_NEED = [(PARAMETERS[name].off, column.need) for name, column in _COLUMNS.items()]


def needs_of(p: SamplingParams) -> int:
    """Bits of `Need` for a row with these parameters, as `resolve_sampling` returns them."""
    needs = 0
    for value, (off, need) in zip(_values(p), _OFF_AND_NEED, strict=True):
        if value != off:
            needs |= need
    if p.logit_bias:
        needs |= Need.BIAS
    if p.suppress_token_ids or p.allowed_token_ids:
        needs |= Need.FORBIDDEN
    for word in p.bad_words_ids or ():
        needs |= Need.FORBIDDEN if len(word) == 1 else Need.BAD_WORDS | Need.RECALLS
    if p.processors:
        needs |= Need.COUNTS | Need.RECALLS
    if p.ignore_eos:
        needs |= Need.ENDLESS
    return needs


def flags_of(p: SamplingParams) -> SamplingFlags:
    """The work of a row with these parameters, as `resolve_sampling` returns them."""
    return SamplingFlags(needs_of(p), frozenset(p.processors or ()))


def merge_flags(rows: Iterable[SamplingFlags]) -> SamplingFlags:
    """The work of a batch of rows."""
    needs = 0
    processors: frozenset[str] = frozenset()
    for row in rows:
        needs |= row.needs
        if row.processors:
            processors |= row.processors
    return SamplingFlags(needs, processors)
