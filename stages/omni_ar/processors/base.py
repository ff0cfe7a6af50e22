"""What an author of a logits processor writes: on the device, or, if it must see the tokens themselves, on the host.

Shape legend: R rows of a batch, N rows of the stage, V vocabulary, W parameters of a row.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from omni.sampling import HostLogitsProcessor


@dataclass(frozen=True, slots=True)
class ProcessedRows:
    """The rows of a batch as a processor sees them, all on the device. Only to be read.

    params_RW: fp32, what `LogitsProcessor.pack` gave; zeros for rows that did not ask for it. num_outputs_R: int64, tokens
    generated so far. last_R: int64, the newest of them, -1 before the first. rows_R: int64, which rows of the stage these are.
    counts_NV: integers, how often each id was generated, of all rows.
    """

    params_RW: Tensor
    num_outputs_R: Tensor
    last_R: Tensor
    rows_R: Tensor
    counts_NV: Tensor

    @property
    def counts_RV(self) -> Tensor:
        """How often each id was generated. A gather: costs nothing where it is not asked for."""
        return self.counts_NV.index_select(0, self.rows_R)


class LogitsProcessor(ABC):
    """Changes logits on the device, from device state alone. Nobody waits for it: steps go on being launched ahead.

    One object per stage; it may keep constants and no history.
    """

    @property
    @abstractmethod
    def width(self) -> int:
        """Parameters of a row, W; 0 if there are none."""

    @abstractmethod
    def pack(self, args: Mapping[str, object], vocab_size: int) -> Sequence[float]:
        """A request's arguments as W numbers, kept as fp32: an id below 2**24 is exact. Brief, on the host, in any thread.

        What is accepted here is what `apply` gets: an id that the vocabulary does not have must not get through.

        Raises InputError naming the argument that is wrong; whatever else it raises is told as one.
        """

    @abstractmethod
    def apply(self, logits_RV: Tensor, rows: ProcessedRows) -> Tensor:
        """New logits, fp32 `[R, V]`; what they are for rows that did not ask for it does not matter.

        Runs inside a device phase: no synchronization, no control flow on tensor values, and a row's result depends on that row
        alone. logits_RV: fp32, to be left as they are; -inf is impossible.
        """


class HistoryProcessor(ABC):
    """Changes logits on the host, from the tokens a request has generated. Its rows wait for each token; no others do."""

    @abstractmethod
    def open(self, args: Mapping[str, object], vocab_size: int) -> HostLogitsProcessor:
        """A host processor for one request. Brief, in any thread; also called just to check the arguments.

        Raises InputError naming the argument that is wrong; whatever else it raises is told as one.
        """
