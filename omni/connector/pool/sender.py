"""The producer's end of a pool."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.connector.base import EdgeEnd
from omni.connector.pieces import ByteMemory, CopiedRef, Part, PayloadLayout, Piece, cut, parts_of, whole
from omni.connector.pool.board import BOARD_CELLS, LARGEST_PART, CopiedBoard, CopyEvent, PoolPiece
from omni.connector.pool.ranges import RangeAllocator, aligned_down
from omni.device import Event, PhaseCategory, declare_categories
from omni.payload import PageSlice, Payload
from omni.payload.copier import PayloadCopier

_MAX_ROWS = 4096
"""Page rows of one copy at most."""
_MOST_PIECE_BYTES = 64 * 2**20
_NOT_GIVEN = np.iinfo(np.uint64).max
"""A number that no piece has."""

declare_categories({"copy_tensors": PhaseCategory.PAYLOAD})


class PayloadRange(NamedTuple):
    """Bytes `start` to `end` of a payload that are one piece. plain: whole tensors; if there are none, `pieces`."""

    start: int
    end: int
    plain: Sequence[Part] = ()
    pieces: Sequence[Piece] = ()


class _Copying(NamedTuple):
    piece: PoolPiece
    copied: Event


class PoolRef(CopiedRef[PayloadRange]):
    """A payload on its way through the pool."""

    def __init__(self, sender: "PoolSender", payload: Payload, ready: Event) -> None:
        parts, nbytes = parts_of(payload)
        super().__init__(payload, ready, _ranges_of(parts, nbytes, sender.piece_bytes))
        self._sender = sender
        self._layout: PayloadLayout | None = PayloadLayout.of(payload, parts, nbytes)
        self._pieces = len(self.left)
        self._copying: deque[_Copying] = deque()

    def pieces(self) -> Sequence[object]:
        if self.sent or self.aborted:
            return ()
        if not self._pieces:
            self.sent = True
            return (PoolPiece(cell=0, number=0, start=0, offset=0, nbytes=0, layout=self._layout),)
        if self.left and self.may_copy():
            while self.left and self._copy_next():
                pass
        done: list[PoolPiece] = []
        while self._copying and (self._sender.marks or self._copying[0].copied.done()):
            done.append(self._copying.popleft().piece)
        self.sent = not self.left and not self._copying
        return done

    def abort(self, reason: str) -> None:
        if self.sent or self.aborted:
            return
        self.aborted = True
        self.left.clear()
        while self._copying:
            self._sender.give_back(self._copying.popleft().piece)

    def _copy_next(self) -> bool:
        payload_range = self.left[0]
        piece = self._sender.acquire(payload_range, self._layout, self._pieces)
        if piece is None:
            return False
        self.left.popleft()
        self._layout = None
        self.copied, error = self._sender.copy(payload_range, piece)
        self._copying.append(_Copying(piece, self.copied))
        if error is not None:
            raise error
        return True


def _ranges_of(parts: Sequence[Part], nbytes: int, most_bytes: int) -> Iterator[PayloadRange]:
    """The pieces of a payload. Tensors that fit together are one."""
    full = [part for part in parts if part.nbytes]
    if not full:
        return
    slices = [part for part in full if isinstance(part.tensor, PageSlice)]
    if nbytes <= most_bytes and sum(part.rows for part in slices) <= _MAX_ROWS:
        end = full[-1].start + full[-1].nbytes
        if slices:
            yield PayloadRange(full[0].start, end, pieces=[whole(part) for part in full])
        else:
            yield PayloadRange(full[0].start, end, plain=full)
        return
    for part in full:
        for piece in cut(part, most_bytes, _MAX_ROWS):
            yield PayloadRange(piece.start, piece.start + piece.nbytes, pieces=(piece,))


class PoolSender:
    """Copies payloads into a pool, on a stream of its own."""

    def __init__(
        self,
        end: EdgeEnd,
        *,
        pool: Tensor,
        board: NDArray[np.uint64],
        address: msgspec.Struct,
        on_close: Callable[[], object],
        copied: CopiedBoard | None = None,
    ) -> None:
        """pool: uint8 `[n]`, on the end's device or pinned. board: `[BOARD_CELLS]`, zeroed. on_close: frees both.

        copied: the receiver has it too, and so gets pieces as soon as their copies are launched. Without it, the sender
        waits for the copies.
        """
        self.address = address
        self.piece_bytes = aligned_down(min(_MOST_PIECE_BYTES, len(pool) // LARGEST_PART))
        self._device = end.device
        self._stream = end.device.stream(f"{end.edge}-send")
        self._copier = PayloadCopier(end.device, self._stream, _MAX_ROWS)
        self._pool: ByteMemory | None = ByteMemory(pool)
        self._board = board
        self._copied = copied
        self._words = copied.device.unbind() if copied is not None else ()
        self._expected = np.full(BOARD_CELLS, _NOT_GIVEN, np.uint64)
        """Numbers of the given pieces, by cell."""
        self._same = np.empty(BOARD_CELLS, np.bool_)
        self._free_cells = list(range(BOARD_CELLS))
        """A heap: the first ones are preferred, since the receiver may keep them."""
        self._ranges = RangeAllocator(len(pool))
        self._given: dict[int, PoolPiece] = {}
        """Pieces that are not acknowledged, by cell."""
        self._numbers = 0
        self._on_close = on_close

    @property
    def marks(self) -> bool:
        """Whether the receiver sees by itself when a copy is complete."""
        return self._copied is not None

    def send(self, payload: Payload, ready: Event) -> PoolRef:
        return PoolRef(self, payload, ready)

    def peer_lost(self) -> None:
        for piece in list(self._given.values()):
            self.give_back(piece)

    def close(self) -> None:
        if self._pool is not None:
            self._pool = None
            self._given.clear()
            self._on_close()

    def acquire(self, payload_range: PayloadRange, layout: PayloadLayout | None, pieces: int) -> PoolPiece | None:
        """A piece with a range of the pool and a cell of the board; None if it cannot be copied now."""
        if payload_range.pieces and not self._copier.ready:
            return None
        self._collect()
        nbytes = payload_range.end - payload_range.start
        start = self._ranges.acquire(nbytes) if self._free_cells else None
        if start is None:
            return None
        cell = heappop(self._free_cells)
        self._numbers += 1
        self._expected[cell] = self._numbers
        piece = self._given[cell] = PoolPiece(
            cell=cell,
            number=self._numbers,
            start=start,
            offset=payload_range.start,
            nbytes=nbytes,
            layout=layout,
            pieces=pieces,
        )
        return piece

    def copy(self, payload_range: PayloadRange, piece: PoolPiece) -> tuple[Event, Exception | None]:
        """Copies to the piece's range. Returns the end of the copies, and their first error."""
        pool = self._pool
        assert pool is not None
        shift = piece.start - piece.offset
        if payload_range.pieces:
            transfers = [
                each.transfer(pool.view(each.start + shift, torch.uint8, (each.nbytes,)))
                for each in payload_range.pieces
            ]
            result = self._copier.copy(transfers)
            if result.failed or self._copied is None:
                return result.end, next(iter(result.failed.values()), None)
        word = None if self._copied is None else self._words[piece.cell]
        into = [pool.view(part.start + shift, part.dtype, part.shape) for part in payload_range.plain]
        tensors = [part.tensor for part in payload_range.plain]
        try:
            self._device.launch(self._stream, copy_tensors, into, tensors, word, piece.number)
        except Exception as error:
            return self._device.record(self._stream), error
        if self._copied is None:
            return self._device.record(self._stream), None
        return CopyEvent(self._copied.host, piece.cell, piece.number), None

    def give_back(self, piece: PoolPiece) -> None:
        """A piece that is not sent. Its copy may still run: other copies into its range follow on the same stream.

        No effect if its cell has another piece: `peer_lost` has then freed all cells.
        """
        if self._given.get(piece.cell) is piece:
            self._free(piece.cell)

    def _collect(self) -> None:
        """Takes back the acknowledged pieces. The host's usual cost is two calls of numpy, independent of their number."""
        np.equal(self._board, self._expected, out=self._same)
        if np.count_nonzero(self._same):
            for cell in np.flatnonzero(self._same).tolist():
                self._free(cell)

    def _free(self, cell: int) -> None:
        piece = self._given.pop(cell)
        self._ranges.release(piece.start, piece.nbytes)
        self._expected[cell] = _NOT_GIVEN
        heappush(self._free_cells, cell)


def copy_tensors(into: Sequence[Tensor], tensors: Sequence[Tensor], word: Tensor | None, number: int) -> None:
    """word: of the board of copied pieces, which gets the piece's number."""
    for part, tensor in zip(into, tensors, strict=True):
        part.copy_(tensor, non_blocking=True)
    if word is not None:
        word.fill_(number)
