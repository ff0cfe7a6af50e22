"""Stages that run each request in a row, and whose number of rows may follow from memory."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from omni.device.graphs import BATCH_SIZES
from omni.stage.base import LoadedStage

MOST_ROWS = 128
"""The maximum number of rows that follows from memory, on a GPU. All rows of a batch wait for its step, which takes longer with
each. So with more rows, many requests at once start sooner, but each stream is slower, until speech is made no faster than it is
played. Each of `BATCH_SIZES` also takes time at start. `max_num_seqs` sets any other number."""
ROW_NUMBERS = tuple(size for size in BATCH_SIZES if size <= MOST_ROWS)
"""The numbers of rows that memory chooses from: captured ones, so that a full batch is not padded."""
MOST_CPU_ROWS = 32
"""The maximum on the CPU, whose steps take time in proportion to their rows from a few on: more rows would slow every stream down
and finish no request sooner, and the measurement of a stage at start would take as much longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCost:
    """The cost of a further row. bytes: of fixed memory. pages: of a request of typical length; 0 for a kind without
    pages."""

    bytes: int
    pages: int = 0


@runtime_checkable
class RowStage(LoadedStage, Protocol):
    """A loaded stage that runs each request in a row. Without a number of the user (`max_num_seqs`) it is loaded with one row,
    and the engine sets the number of rows that memory allows."""

    @property
    def rows(self) -> int:
        """The present number of rows, to which the footprint belongs."""

    @property
    def chosen_rows(self) -> int | None:
        """The user's number; None if it follows from memory."""

    def count_row(self) -> RowCost:
        """The cost of a further row, counted by allocating it: on the meta device, or as one row on the stage's device."""

    def set_rows(self, rows: int) -> None:
        """Allocates the buffers of so many rows, in place of the present ones. Before `start`, also after a `measure` or a call
        that failed. Raises InsufficientMemoryError."""


def rows_or_default(chosen: int | None) -> int:
    """The user's number of rows, or the maximum on the CPU."""
    return MOST_CPU_ROWS if chosen is None else chosen


def most_rows(device: torch.device) -> int:
    """The maximum number of rows that follows from memory on a device."""
    return MOST_CPU_ROWS if device.type == "cpu" else MOST_ROWS
