"""Building blocks of connectors that copy payloads through a pool of memory that both ends see.

| memory | written by | read by | free when |
|---|---|---|---|
| the payload's | the producer's phases | the sender's copies | the last copy is complete |
| a range of the pool | the sender's copies, before it is sent | the receiver's copy, or the consumer | acknowledged, or not sent |
| the acknowledgement board | the receiver | the sender | the connector closes |
| the receiver's own memory | the receiver's copies | the consumer | `Pending.release(after)` and `after` is done |

A payload that fits is one piece. In the first half of the pool it is delivered as views of the pool. Everything else is
copied out of the pool at once. So the second half drains, whatever the consumer does, and a piece, at most a quarter of
the pool, fits there.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.connector.base import EdgeEnd, Received
from omni.connector.pieces import Part, PayloadLayout, Piece, cut, parts_of, whole
from omni.device import COMPLETED, Event, PhaseCategory, declare_categories
from omni.payload import PageSlice, Payload
from omni.payload.receiver import PayloadReceiver

_MAX_ROWS = 4096
"""Page rows of one copy at most."""
_MOST_PIECE_BYTES = 64 * 2**20
_ALIGNMENT = 256
"""Bytes, of ranges of the pool. A GPU copies aligned memory faster."""
BOARD_SLOTS = 1024
"""Pieces of one sender under way at most."""
BOARD_BYTES = BOARD_SLOTS * 8

declare_categories({"copy_bytes": PhaseCategory.PAYLOAD})


class PoolPiece(msgspec.Struct, frozen=True, array_like=True):
    """Bytes `offset` to `offset + nbytes` of a payload, from byte `start` of the pool.

    slot, number: `number` in `slot` of the board acknowledges the piece.
    layout: of the payload, with its first piece. pieces: of the payload; 0 if it has no bytes.
    """

    slot: int
    number: int
    start: int
    offset: int
    nbytes: int
    layout: PayloadLayout | None = None
    pieces: int = 0


class RangeAllocator:
    """Ranges of a pool, first fit."""

    def __init__(self, nbytes: int) -> None:
        self._free = [(0, nbytes // _ALIGNMENT * _ALIGNMENT)]
        """Free ranges `(start, end)` in order, none adjacent to the next."""

    def acquire(self, nbytes: int) -> int | None:
        """The first byte of a range; None if there is none."""
        size = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        for place, (start, end) in enumerate(self._free):
            if end - start >= size:
                self._free[place : place + 1] = [(start + size, end)] if end - start > size else []
                return start
        return None

    def release(self, start: int, nbytes: int) -> None:
        end = start + -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        place = next((i for i, (other, _) in enumerate(self._free) if other > start), len(self._free))
        if place < len(self._free) and self._free[place][0] == end:
            end = self._free.pop(place)[1]
        if place and self._free[place - 1][1] == start:
            start = self._free.pop(place - 1)[0]
            place -= 1
        self._free.insert(place, (start, end))


@dataclass(frozen=True, slots=True)
class _Copying:
    piece: PoolPiece
    copied: Event


class PoolRef:
    """A payload on its way through the pool."""

    def __init__(self, sender: "PoolSender", payload: Payload, ready: Event) -> None:
        self.sent = False
        self._aborted = False
        self._sender = sender
        self._ready = ready
        parts, nbytes = parts_of(payload)
        self._slices = [part.tensor for part in parts if isinstance(part.tensor, PageSlice)]
        self._left = _cut(parts, nbytes, sender.piece_bytes)
        self._layout: PayloadLayout | None = PayloadLayout.of(payload, parts, nbytes)
        self._pieces = len(self._left)
        self._copying: deque[_Copying] = deque()
        self._copied: Event = COMPLETED

    @property
    def released(self) -> bool:
        return not self._left

    @property
    def freed(self) -> bool:
        return not self._left and self._copied.done()

    def pieces(self) -> Sequence[object]:
        if self.sent or self._aborted:
            return ()
        if not self._pieces:
            self.sent = True
            return (PoolPiece(0, 0, 0, 0, 0, self._layout),)
        while self._left and self._may_copy() and self._copy_next():
            pass
        done: list[PoolPiece] = []
        while self._copying and self._copying[0].copied.done():
            done.append(self._copying.popleft().piece)
        self.sent = not self._left and not self._copying
        return done

    def abort(self, reason: str) -> None:
        if self.sent or self._aborted:
            return
        self._aborted = True
        self._left.clear()
        while self._copying:
            self._sender.give_back(self._copying.popleft().piece)

    def _may_copy(self) -> bool:
        """Whether copies launched now read the payload."""
        return self._ready.done() and all(part.moved.done() for part in self._slices)

    def _copy_next(self) -> bool:
        neighbours = self._left[0]
        first, last = neighbours[0], neighbours[-1]
        offset, nbytes = first.start, last.start + last.nbytes - first.start
        place = self._sender.acquire(nbytes)
        if place is None:
            return False
        self._left.popleft()
        piece = PoolPiece(place.slot, place.number, place.start, offset, nbytes, self._layout, self._pieces)
        self._layout = None
        self._copied, error = self._sender.copy(neighbours, place.start - offset)
        self._copying.append(_Copying(piece, self._copied))
        if error is not None:
            raise error
        return True


def _cut(parts: Sequence[Part], nbytes: int, most_bytes: int) -> deque[list[Piece]]:
    """The pieces of a payload. Tensors that fit together are one."""
    full = [part for part in parts if part.nbytes]
    rows = sum(part.rows for part in full if isinstance(part.tensor, PageSlice))
    if full and nbytes <= most_bytes and rows <= _MAX_ROWS:
        return deque([[whole(part) for part in full]])
    return deque([piece] for part in full for piece in cut(part, most_bytes, _MAX_ROWS))


@dataclass(frozen=True, slots=True)
class _Place:
    slot: int
    number: int
    start: int


class PoolSender:
    """Copies payloads into a pool, on a stream of its own."""

    def __init__(
        self,
        end: EdgeEnd,
        pool: Tensor,
        board: NDArray[np.uint64],
        address: msgspec.Struct,
        on_close: Callable[[], object],
    ) -> None:
        """pool: uint8 `[n]`, on the end's device or pinned. board: `[BOARD_SLOTS]`, zeroed. on_close: frees both."""
        self.address = address
        self.piece_bytes = min(_MOST_PIECE_BYTES, len(pool) // 4) // _ALIGNMENT * _ALIGNMENT
        self._device = end.device
        self._receiver = PayloadReceiver(end.device, end.device.stream(f"{end.edge}-send"), _MAX_ROWS)
        self._pool: Tensor | None = pool
        self._board = board
        self._expected = np.zeros(BOARD_SLOTS, np.uint64)
        self._free_slots = list(range(BOARD_SLOTS))
        """A heap: the first ones are preferred, since the receiver may keep them."""
        self._ranges = RangeAllocator(len(pool))
        self._given: dict[int, tuple[int, int, int]] = {}
        """Pieces that are not acknowledged, by slot: number, start, bytes."""
        self._numbers = 0
        self._on_close = on_close

    def send(self, payload: Payload, ready: Event) -> PoolRef:
        return PoolRef(self, payload, ready)

    def peer_lost(self) -> None:
        for slot, (number, _, _) in list(self._given.items()):
            self._free(slot, number)

    def close(self) -> None:
        if self._pool is not None:
            self._pool = None
            self._given.clear()
            self._on_close()

    def acquire(self, nbytes: int) -> _Place | None:
        """A range of the pool and a slot of the board; None if none is free now."""
        if not self._receiver.ready:
            return None
        self._collect()
        start = self._ranges.acquire(nbytes) if self._free_slots else None
        if start is None:
            return None
        slot = heappop(self._free_slots)
        self._numbers += 1
        self._expected[slot] = self._numbers
        self._given[slot] = self._numbers, start, nbytes
        return _Place(slot, self._numbers, start)

    def copy(self, pieces: Sequence[Piece], shift: int) -> tuple[Event, Exception | None]:
        """Copies pieces of a payload to their bytes plus `shift`. Returns the end of the copies, and their first error."""
        pool = self._pool
        assert pool is not None
        transfers = [piece.transfer(pool[piece.start + shift :][: piece.nbytes]) for piece in pieces]
        receipt = self._receiver.receive(transfers)
        return receipt.end, next(iter(receipt.failed.values()), None)

    def give_back(self, piece: PoolPiece) -> None:
        """A piece that is not sent. Its copy may still run: other copies into its range follow on the same stream."""
        self._free(piece.slot, piece.number)

    def _collect(self) -> None:
        for slot in np.flatnonzero((self._board == self._expected) & (self._expected > 0)).tolist():
            self._free(slot, int(self._expected[slot]))

    def _free(self, slot: int, number: int) -> None:
        """No effect if the slot has another piece by now: `peer_lost` frees all."""
        given = self._given.get(slot)
        if given is not None and given[0] == number:
            del self._given[slot]
            self._ranges.release(given[1], given[2])
            self._expected[slot] = 0
            heappush(self._free_slots, slot)


class PoolMemory(Protocol):
    """The sender's pool, as the receiver reaches it."""

    def view(self, start: int, nbytes: int) -> Tensor | None:
        """Bytes of the pool, uint8 `[nbytes]`, for phases on the receiver's device; None if they cannot use it."""
        ...

    def copy_to(self, into: Tensor, start: int) -> None:
        """Enqueues a copy of `len(into)` bytes (uint8). Called in a phase."""
        ...


@dataclass(frozen=True, slots=True)
class TensorMemory:
    """A pool that is a tensor here. device: the receiver's."""

    pool: Tensor
    device: torch.device

    def view(self, start: int, nbytes: int) -> Tensor | None:
        return self.pool[start : start + nbytes] if self.pool.device == self.device else None

    def copy_to(self, into: Tensor, start: int) -> None:
        into.copy_(self.pool[start : start + len(into)], non_blocking=True)


def copy_bytes(memory: PoolMemory, into: Tensor, start: int) -> None:
    memory.copy_to(into, start)


class PoolPending:
    """A payload on its way out of the pool.

    It has a view of the pool, or memory of its own (uint8 `[n]`), or neither if it has no bytes.
    """

    def __init__(self, receiver: "PoolReceiver", first: PoolPiece) -> None:
        assert first.layout is not None, "pieces of a payload come in order"
        self._receiver = receiver
        self._layout = first.layout
        self._missing = first.pieces
        self._viewed: PoolPiece | None = None
        self._bytes: Tensor | None = None
        self._copied: Event = COMPLETED
        self._over = False
        if self._missing:
            self._bytes = receiver.view(first) if self._missing == 1 else None
            if self._bytes is not None:
                self._viewed = first
                self._missing = 0
            else:
                self._bytes = receiver.allocate(first.layout.nbytes)
                self.add(first)

    def add(self, piece: object) -> None:
        assert isinstance(piece, PoolPiece)
        assert self._bytes is not None
        self._missing -= 1
        self._copied = self._receiver.copy(piece, self._bytes)

    def poll(self) -> Received | None:
        if self._missing:
            return None
        memory = self._bytes if self._bytes is not None else self._receiver.nothing
        return Received(self._layout.payload(memory), self._copied)

    def release(self, after: Event) -> None:
        self._over = True
        if self._bytes is not None:
            self._receiver.keep(after, self._viewed, self._bytes)
            self._bytes = None

    def abort(self) -> None:
        if not self._over:
            self.release(self._copied)


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """What is in use until `after`: a piece of the pool, or memory of the receiver's own."""

    after: Event
    piece: PoolPiece | None
    memory: Tensor | None


class PoolReceiver:
    """Delivers payloads from a pool, on a stream of its own."""

    def __init__(
        self,
        end: EdgeEnd,
        memory: PoolMemory,
        board: NDArray[np.uint64],
        pool_bytes: int,
        on_close: Callable[[], object],
    ) -> None:
        """board, pool_bytes: of the sender. on_close: frees memory and board, when nothing reads them."""
        self._device = end.device
        self._stream = end.device.stream(f"{end.edge}-receive")
        self.nothing = end.device.empty((0,), torch.uint8, self._stream)
        self._memory = memory
        self._board = board
        self._half = pool_bytes // 2
        self._kept: list[_Kept] = []
        self._on_close = on_close
        self._closed = False

    @property
    def busy(self) -> bool:
        return bool(self._kept)

    def receive(self, piece: object) -> PoolPending:
        assert isinstance(piece, PoolPiece)
        return PoolPending(self, piece)

    def discard(self, piece: object) -> None:
        assert isinstance(piece, PoolPiece)
        self._acknowledge(piece)

    def tick(self) -> None:
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
            self._kept.clear()
            self._on_close()

    def view(self, piece: PoolPiece) -> Tensor | None:
        """The piece where it is; None if it should be copied."""
        if piece.start + piece.nbytes > self._half or piece.slot >= BOARD_SLOTS // 2:
            return None
        return self._memory.view(piece.start, piece.nbytes)

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

    def keep(self, after: Event, viewed: PoolPiece | None, memory: Tensor) -> None:
        """Keeps a released payload's memory until `after`."""
        self._kept.append(_Kept(after, viewed, memory))

    def _acknowledge(self, piece: PoolPiece) -> None:
        if piece.number:
            self._board[piece.slot] = piece.number
