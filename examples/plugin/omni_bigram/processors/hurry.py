"""On the device: ids that get likelier the longer a text is, such as its end.

Shape legend: R rows, V vocabulary, K ids.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from torch import Tensor

from omni import InputError
from omni_ar.processors import LogitsProcessor, ProcessedRows

MOST_IDS = 4


class HurryArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Each token after the first `after` adds `by` to the logits of `ids`."""

    ids: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    by: float
    after: int = 0


class Hurry(LogitsProcessor):
    width = 2 + MOST_IDS

    def pack(self, args: Mapping[str, object], vocab_size: int) -> Sequence[float]:
        given = msgspec.convert(args, HurryArgs)
        if not 1 <= len(given.ids) <= MOST_IDS:
            raise InputError("ids", f"are {len(given.ids)}", f"name 1 to {MOST_IDS}")
        if max(given.ids) >= vocab_size:
            problem = f"{max(given.ids)} is not in the vocabulary"
            raise InputError("ids", problem, f"use ids below {vocab_size}")
        # An id that comes twice is biased once.
        return [given.by, given.after, *given.ids, *[given.ids[0]] * (MOST_IDS - len(given.ids))]

    def apply(self, logits_RV: Tensor, rows: ProcessedRows) -> Tensor:
        by_R, after_R = rows.params_RW[:, 0], rows.params_RW[:, 1]
        ids_RK = rows.params_RW[:, 2:].long()
        bias_R = by_R * (rows.num_outputs_R - after_R).clamp(min=0)
        hurried_RK = logits_RV.gather(1, ids_RK) + bias_R[:, None]
        return logits_RV.scatter(1, ids_RK, hurried_RK)
