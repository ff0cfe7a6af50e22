"""Base classes of logits processors: on the device, or on the host for processors that read the tokens.

Shape legend: R rows of a batch, N rows of the stage, V vocabulary, W parameters of a row.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from omni.sampling import HostLogitsProcessor


@dataclass(frozen=True, slots=True)
class ProcessedRows:
    """The rows of a batch, all on the device. Read-only. params_RW: fp32, as `LogitsProcessor.pack` returned them; zeros for rows
    that do not use the processor. num_outputs_R: int64, number of generated tokens. last_R: int64, the newest token, -1 before the
    first. rows_R: int64, indexes of the rows in the stage. counts_NV: integers, for all rows of the stage, times each id was
    generated."""

    params_RW: Tensor
    num_outputs_R: Tensor
    last_R: Tensor
    rows_R: Tensor
    counts_NV: Tensor

    @property
    def counts_RV(self) -> Tensor:
        """Number of times each id was generated. Every access gathers it."""
        return self.counts_NV.index_select(0, self.rows_R)


class LogitsProcessor(ABC):
    """Changes logits on the device, from device state alone. It does not limit run-ahead. One object per stage, without history."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Parameters of a row, W; 0 if there are none."""

    @abstractmethod
    def pack(self, args: Mapping[str, object], vocab_size: int) -> Sequence[float]:
        """A request's arguments as W numbers, stored as fp32: an id below 2**24 is exact. Must be fast; runs on the host, in any
        thread. Must refuse ids outside the vocabulary: `apply` receives every accepted value.

        Raises InputError naming the wrong argument; any other exception is reported as an InputError.
        """

    @abstractmethod
    def apply(self, logits_RV: Tensor, rows: ProcessedRows) -> Tensor:
        """New logits, fp32 `[R, V]`; the values of rows that do not use the processor are ignored.

        Runs inside a device phase: no synchronization, no control flow on tensor values, and a row's result depends on that row
        alone. logits_RV: fp32, must not be modified; -inf is impossible.
        """


class HistoryProcessor(ABC):
    """Changes logits on the host, from the tokens that a request has generated. Its rows wait for each token; other rows do not."""

    @abstractmethod
    def open(self, args: Mapping[str, object], vocab_size: int) -> HostLogitsProcessor:
        """A host processor for one request. Must be fast; runs in any thread. Also called only to check the arguments. Raises
        InputError naming the wrong argument; any other exception is reported as an InputError."""
