"""The processor. Shape legend: R rows of a batch, V vocabulary."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from torch import Tensor

from omni_ar.processors import LogitsProcessor, ProcessedRows


class VarietyArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of a request: ids that were generated at least `most` times lose `by` of their logit."""

    by: float
    most: Annotated[int, msgspec.Meta(ge=1)] = 1


class VarietyProcessor(LogitsProcessor):
    """Runs on the device, from data there. Derive from `HistoryProcessor` for one that reads the tokens on the host."""

    width = 2

    def pack(self, args: Mapping[str, object], vocab_size: int) -> Sequence[float]:
        """`width` numbers of each request. An error of `convert` names the argument."""
        given = msgspec.convert(args, VarietyArgs)
        return [given.by, given.most]

    def apply(self, logits_RV: Tensor, rows: ProcessedRows) -> Tensor:
        """Edits a whole batch, in a device phase: no `.item()`, no `if` on a tensor's values. Rows of other requests have zeros."""
        by_R, most_R = rows.params_RW.unbind(1)
        often_RV = rows.counts_RV >= most_R[:, None]
        return logits_RV - by_R[:, None] * often_RV
