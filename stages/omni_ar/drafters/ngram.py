"""Drafts from the request's own text: the tokens that followed its newest ones when they last occurred. It has no weights, and pays
where a text repeats parts of itself or of its prompt."""

from collections.abc import Mapping

import msgspec

from omni_ar.drafters.base import Drafter, DraftRows, DraftSetup
from omni_ar.kernels.ngram import propose_ngrams

_MOST = 16


class NgramArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """fewest, most: minimum number of newest tokens that must match, and the length up to which longer matches are preferred."""

    fewest: int = 2
    most: int = 4

    def __post_init__(self) -> None:
        if not 1 <= self.fewest <= self.most <= _MOST:
            raise ValueError(f"fewest and most must be in order, at least 1, at most {_MOST}")


class NgramDrafter(Drafter):
    def __init__(self, args: Mapping[str, object], setup: DraftSetup) -> None:
        self._args = msgspec.convert(args, NgramArgs)
        self._vocab = setup.vocab_size

    def draft(self, rows: DraftRows) -> None:
        propose_ngrams(
            rows.text_NL,
            rows.rows_R,
            rows.length_N,
            fewest=self._args.fewest,
            most=self._args.most,
            vocab=self._vocab,
            drafts_NK=rows.drafts_NK,
            proposed_N=rows.proposed_N,
        )
