"""The contract of drafters, which plugins provide and a stage selects by name (`ArOptions.drafter`).

Shape legend: R rows of the batch, N rows of the stage, L tokens of a row, K drafts of a row.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from omni.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSetup:
    """The stage of a drafter. drafts: K. max_model_len: maximum tokens of a request."""

    drafts: int
    vocab_size: int
    max_model_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRows:
    """The rows of a decode step, on the device. Read only, but for the last two.

    rows_R: int64, indexes of the rows in the stage. text_NL: int32, prompt and output of every row of the stage; behind them what
    `Drafter.foresee` gave, then -1; the last column has no meaning. length_N: int64, index of the newest token. drafts_NK: int64,
    the drafts to be written. proposed_N: int64, their number, to be written for each row of the batch.
    """

    rows_R: Tensor
    text_NL: Tensor
    length_N: Tensor
    drafts_NK: Tensor
    proposed_N: Tensor


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """A request, on the host. ids_T: the prompt's token ids. sampling: complete. sample_index: index among its samples."""

    ids_T: NDArray[np.int64]
    sampling: SamplingParams
    sample_index: int


class Drafter(ABC):
    """Guesses the next tokens of rows. One object per stage. Drafts change how many tokens a step gives, and no token."""

    @abstractmethod
    def draft(self, rows: DraftRows) -> None:
        """Writes the drafts of each row of the batch, the likeliest text first, and their number. Drafts that are not verified in
        this step are made again in the next.

        Runs inside a device phase, at the head of the step that verifies the drafts, and may be captured: no synchronization, no
        control flow on tensor values, and no result of one row that depends on another. A row may be in the batch several times,
        if it is finished.
        """

    def foresee(self, request: DraftRequest, outputs: Sequence[int]) -> Sequence[int]:
        """Token ids that may follow a request's first outputs, for `DraftRows.text_NL`; called when its row starts, and again when
        it starts again after a preemption. On the host; must be fast."""
        return ()

    def finished(self, request: DraftRequest, outputs: Sequence[int]) -> None:  # noqa: B027 - most need no more
        """Called with the outputs of a request that has ended by itself, before they reach the user. On the host; must be fast."""
