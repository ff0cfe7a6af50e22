"""Payloads assembled in host memory from pieces: those that are too large for a slot, or found none free."""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.device import COMPLETED, Device, Event, HostRing, HostSlot
from omni.payload import PageSlice, Payload
from omni.stage.receiver import PayloadReceiver, Transfer

MAX_ROWS = 4096
"""Page rows of one copy at most."""
_SLOTS = 2
"""Slots: one piece is copied off the device while the host moves the one before."""
_ALIGNMENT = 64
"""Bytes. Every tensor starts at a multiple, so that its memory can be viewed in any dtype."""


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor of a payload, viewed as `[rows, columns]`, and its place in the payload's host memory.

    shape: the consumer's shape.
    """

    name: str
    tensor: Tensor | PageSlice
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int

    @property
    def rows(self) -> int:
        return self.shape[0] if self.shape else 1

    @property
    def columns(self) -> int:
        return math.prod(self.shape[1:])

    @property
    def nbytes(self) -> int:
        return self.rows * self.columns * self.dtype.itemsize

    def in_memory(self, host: Tensor) -> Tensor:
        """The part in the payload's host memory (uint8 `[n]`), with the consumer's dtype and shape."""
        return host[self.start : self.start + self.nbytes].view(self.dtype).view(self.shape)


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows `first` to `end` and columns `left` to `right` of a part: consecutive bytes of the payload's host memory."""

    part: Part
    first: int
    end: int
    left: int
    right: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.end - self.first, self.right - self.left

    @property
    def start(self) -> int:
        """Its first byte in the payload's host memory."""
        return self.part.start + (self.first * self.part.columns + self.left) * self.part.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.part.dtype.itemsize

    def transfer(self, host: Tensor) -> Transfer:
        """The copy into host memory, uint8 `[nbytes]`."""
        into, source = host.view(self.part.dtype).view(self.shape), self.part.tensor
        return Transfer(source, into, rows=slice(self.first, self.end), columns=slice(self.left, self.right))


def parts_of(payload: Payload) -> tuple[tuple[Part, ...], int]:
    """The payload's tensors as adjacent parts, and their total bytes in host memory."""
    parts: list[Part] = []
    start = 0
    for name, tensor in payload.tensors.items():
        parts.append(Part(name, tensor, tensor.dtype, tuple(tensor.shape), start))
        start += -(-parts[-1].nbytes // _ALIGNMENT) * _ALIGNMENT
    return tuple(parts), start


def whole(part: Part) -> Piece:
    return Piece(part, 0, part.rows, 0, part.columns)


def cut(part: Part, most_bytes: int, most_rows: int) -> Iterator[Piece]:
    """Cuts a part into pieces of at most `most_bytes` and `most_rows`, in order: whole rows, or parts of large ones."""
    if not part.nbytes:
        return
    columns = most_bytes // part.dtype.itemsize
    rows = min(columns // part.columns, most_rows)
    for first in range(0, part.rows, max(rows, 1)):
        if rows:
            yield Piece(part, first, min(first + rows, part.rows), 0, part.columns)
            continue
        for left in range(0, part.columns, columns):
            yield Piece(part, first, first + 1, left, min(left + columns, part.columns))


class PieceRing:
    """Pinned slots of `size` bytes that pieces pass through. No consumer holds one, so they always become free.

    | buffer | written by | read by | freed by |
    |---|---|---|---|
    | a slot | the copy of a piece | host, once the copy's event is done | the host's read; one assembly at a time |
    """

    def __init__(self, device: Device, size: int) -> None:
        self.size = size
        self._ring = HostRing.allocate(device, (size,), torch.uint8, _SLOTS)

    @property
    def ready(self) -> bool:
        """Whether the next slot is free: the copy of an abandoned piece may still write it."""
        return self._ring.ready

    def advance(self) -> HostSlot:
        return self._ring.advance()


class Assembly:
    """The assembly of one payload. copied: the end of the copies launched so far."""

    def __init__(self, parts: Sequence[Part], nbytes: int, receiver: PayloadReceiver, ring: PieceRing) -> None:
        self.copied: Event = COMPLETED
        self._bytes: NDArray[np.uint8] = np.empty(nbytes, np.uint8)
        self._parts = parts
        self._receiver = receiver
        self._ring = ring
        self._left = deque(piece for part in parts for piece in cut(part, ring.size, MAX_ROWS))
        self._under_way: deque[tuple[Piece, HostSlot]] = deque()

    @property
    def launched(self) -> bool:
        """Whether all copies from the payload are launched."""
        return not self._left

    @property
    def over(self) -> bool:
        return not self._left and not self._under_way

    def tensors(self) -> dict[str, Tensor]:
        """The consumer's tensors, complete once `over`."""
        memory = torch.from_numpy(self._bytes)
        return {part.name: part.in_memory(memory) for part in self._parts}

    def collect(self) -> None:
        """Moves pieces whose copies are complete to their places."""
        while self._under_way and self._under_way[0][1].free:
            piece, slot = self._under_way.popleft()
            self._bytes[piece.start : piece.start + piece.nbytes] = slot.read()[: piece.nbytes]

    def launch(self) -> None:
        """Launches copies while slots are free. The payload must have arrived (`PageSlice.moved`)."""
        while self._left and len(self._under_way) < _SLOTS and self._ring.ready and self._receiver.ready:
            piece, slot = self._left.popleft(), self._ring.advance()
            slot.take()
            receipt = self._receiver.receive([piece.transfer(slot.tensor[: piece.nbytes])])
            self.copied = receipt.end
            slot.guard(receipt.end)
            receipt.check()
            self._under_way.append((piece, slot))
