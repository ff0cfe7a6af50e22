"""The consumer's end of a pool."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.connector.base import EdgeEnd, Received
from omni.connector.pieces import ByteMemory
from omni.connector.pool.board import BOARD_CELLS, LARGEST_PART, PoolPiece
from omni.device import COMPLETED, Event, PhaseCategory, declare_categories

declare_categories({"copy_bytes": PhaseCategory.PAYLOAD})


class PoolMemory(Protocol):
    """The sender's pool, as the receiver reaches it."""

    @property
    def views(self) -> ByteMemory | None:
        """The pool, for phases on the receiver's device; None if they cannot use it."""
        ...

    def copy_to(self, into: Tensor, start: int) -> None:
        """Enqueues a copy of `len(into)` bytes (uint8). Called in a phase."""
        ...


class TensorMemory:
    """A pool that is a tensor here."""

    def __init__(self, pool: Tensor, device: torch.device) -> None:
        """device: the device that the receiver delivers to."""
        self.views = ByteMemory(pool) if pool.device == device else None
        self._pool = pool

    def copy_to(self, into: Tensor, start: int) -> None:
        into.copy_(self._pool[start : start + len(into)], non_blocking=True)


def copy_bytes(memory: PoolMemory, into: Tensor, start: int) -> None:
    memory.copy_to(into, start)


class PoolPending:
    """A payload on its way out of the pool.

    It is read in the pool, or has memory of its own (uint8 `[n]`), or neither if it has no bytes.
    """

    def __init__(self, receiver: "PoolReceiver", first: PoolPiece) -> None:
        assert first.layout is not None, "pieces of a payload come in order"
        self._receiver = receiver
        self._layout = first.layout
        self._missing = first.pieces
        self._memory = receiver.nothing
        self._start = 0
        self._viewed: PoolPiece | None = None
        self._bytes: Tensor | None = None
        self._copied: Event = COMPLETED
        self._held = bool(self._missing)
        """Whether it is neither released nor aborted, and has bytes."""
        if not self._missing:
            return
        receiver.unreleased += 1
        views = receiver.views_of(first)
        if views is not None:
            self._memory, self._start, self._viewed = views, first.start, first
            self._missing = 0
        else:
            self._bytes = receiver.allocate(first.layout.nbytes)
            self._memory = ByteMemory(self._bytes)
            self.add(first)

    def add(self, piece: object) -> None:
        assert isinstance(piece, PoolPiece)
        self._receiver.take(self, piece)

    def copy(self, piece: PoolPiece) -> None:
        """Launches the copy of a piece whose bytes are in the pool."""
        assert self._bytes is not None
        self._missing -= 1
        self._copied = self._receiver.copy(piece, self._bytes)

    def poll(self) -> Received | None:
        if self._missing or (self._viewed is not None and not self._receiver.is_copied(self._viewed)):
            return None
        return Received(self._layout.payload(self._memory, self._start), self._copied)

    def release(self, after: Event) -> None:
        if self._held:
            self._held = False
            self._receiver.keep(after, self._viewed, self._bytes)
            self._receiver.unreleased -= 1
            self._bytes = None
            self._memory = self._receiver.nothing

    def abort(self) -> None:
        if self._held and self._missing:
            self._receiver.leave(self)
        self.release(self._copied)


class _Kept(NamedTuple):
    """Memory in use until `after`: a piece of the pool, or the receiver's own."""

    after: Event
    piece: PoolPiece | None
    memory: Tensor | None


class PoolReceiver:
    """Delivers payloads from a pool, on a stream of its own."""

    def __init__(
        self,
        end: EdgeEnd,
        *,
        memory: PoolMemory,
        board: NDArray[np.uint64],
        pool_bytes: int,
        on_close: Callable[[], object],
        copied: NDArray[np.int64] | None = None,
    ) -> None:
        """board: the board that the sender reads acknowledgements from. pool_bytes: the size of the sender's pool. copied: the
        sender's `CopiedBoard.host`; None if it sends a piece only after its copy. on_close: frees memory and boards; called
        when nothing reads them."""
        self._device = end.device
        self._stream = end.device.stream(f"{end.edge}-receive")
        self.nothing = ByteMemory(end.device.empty((0,), torch.uint8, self._stream))
        self._memory = memory
        self._board = board
        self._viewed_bytes = pool_bytes - pool_bytes // LARGEST_PART
        self._viewed_cells = BOARD_CELLS - BOARD_CELLS // LARGEST_PART
        self.unreleased = 0
        """Payloads whose consumer may read the pool, or memory copied from it."""
        self._copied = copied
        self._early: deque[tuple[PoolPending, PoolPiece]] = deque()
        """Pieces to copy whose bytes are not in the pool yet. Those of a sender come there in order."""
        self._kept: list[_Kept] = []
        self._on_close = on_close
        self._closed = False

    @property
    def busy(self) -> bool:
        return bool(self._kept or self.unreleased)

    def receive(self, piece: object) -> PoolPending:
        assert isinstance(piece, PoolPiece)
        return PoolPending(self, piece)

    def discard(self, piece: object) -> None:
        assert isinstance(piece, PoolPiece)
        self._acknowledge(piece)

    def tick(self) -> None:
        while self._early and self.is_copied(self._early[0][1]):
            pending, piece = self._early.popleft()
            pending.copy(piece)
        waiting = []
        for kept in self._kept:
            if not kept.after.done():
                waiting.append(kept)
            elif kept.piece is not None:
                self._acknowledge(kept.piece)
        self._kept = waiting

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._early.clear()
            self._kept.clear()
            self._on_close()

    def views_of(self, piece: PoolPiece) -> ByteMemory | None:
        """The memory of a payload of one piece, if it is read where it is; None if it should be copied."""
        beyond = piece.start + piece.nbytes > self._viewed_bytes or piece.cell >= self._viewed_cells
        return None if beyond or piece.pieces > 1 else self._memory.views

    def is_copied(self, piece: PoolPiece) -> bool:
        """Whether the piece's bytes are in the pool. A later piece in its cell, with a higher number, comes only after it
        is acknowledged."""
        return self._copied is None or bool(self._copied[piece.cell] >= piece.number)

    def take(self, pending: PoolPending, piece: PoolPiece) -> None:
        """Copies a piece for `pending` as soon as its bytes are in the pool."""
        if self._early or not self.is_copied(piece):
            self._early.append((pending, piece))
        else:
            pending.copy(piece)

    def leave(self, pending: PoolPending) -> None:
        """Gives up the pieces of `pending` that are not copied yet. The sender's copies may still run: its later ones into
        the same ranges follow on the same stream."""
        for other, piece in self._early:
            if other is pending:
                self._acknowledge(piece)
        self._early = deque(each for each in self._early if each[0] is not pending)

    def allocate(self, nbytes: int) -> Tensor:
        """Memory of the receiver's own."""
        return self._device.empty((nbytes,), torch.uint8, self._stream)

    def copy(self, piece: PoolPiece, into: Tensor) -> Event:
        """Copies a piece to its place in a payload's bytes, and acknowledges it when that is done."""
        part = into[piece.offset : piece.offset + piece.nbytes]
        self._device.launch(self._stream, copy_bytes, self._memory, part, piece.start)
        copied = self._device.record(self._stream)
        self._kept.append(_Kept(copied, piece, into))
        return copied

    def keep(self, after: Event, viewed: PoolPiece | None, memory: Tensor | None) -> None:
        """Keeps a released payload's memory until `after`."""
        self._kept.append(_Kept(after, viewed, memory))

    def _acknowledge(self, piece: PoolPiece) -> None:
        if piece.number:
            self._board[piece.cell] = piece.number
