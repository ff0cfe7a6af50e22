"""Data shared by the two ends of a pool: its pieces, and the boards that report their progress."""

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from omni.connector.pieces import PayloadLayout

BOARD_CELLS = 1024
"""Pieces of one sender under way at most."""
BOARD_BYTES = BOARD_CELLS * 8
"""Size of one board: uint64 `[BOARD_CELLS]`, numbers of pieces by cell."""
LARGEST_PART = 4
"""A piece is at most this part of the pool, so that it fits into the part that the receiver leaves free."""


class PoolPiece(msgspec.Struct, frozen=True, array_like=True):
    """Bytes `offset` to `offset + nbytes` of a payload, from byte `start` of the pool.

    cell, number: the receiver acknowledges the piece by writing `number` to `cell` of the board.
    layout: the layout of the payload, in its first piece only. pieces: the number of pieces of the payload, 0 if it has no bytes.
    """

    cell: int
    number: int
    start: int
    offset: int
    nbytes: int
    layout: PayloadLayout | None = None
    pieces: int = 0


@dataclass(frozen=True, slots=True)
class CopiedBoard:
    """The pieces whose copies into the pool are complete. The sender's stream writes it, in host memory that both
    processes read: so a piece is under way while its copy runs.

    host: int64 `[BOARD_CELLS]`, zeroed, as the host reads it. device: the same memory, for the sender's phases.
    """

    host: NDArray[np.int64]
    device: Tensor


@dataclass(frozen=True, slots=True)
class CopyEvent:
    """The event of a copy that is on a board. A later piece in its cell has a higher number, and follows it."""

    board: NDArray[np.int64]
    cell: int
    number: int

    def done(self) -> bool:
        return bool(self.board[self.cell] >= self.number)
