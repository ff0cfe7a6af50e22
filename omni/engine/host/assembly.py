"""Payload in host memory of its own, put together from pieces: what is too large for a slot, or found none."""

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.device import COMPLETED, Device, Event, HostRing, HostSlot
from omni.engine.host.copier import MOST_ROWS, Copier
from omni.engine.host.part import Part, Piece, cut

_SLOTS = 2
"""One piece is copied off the device while the host moves the one before."""


class PieceRing:
    """Pinned slots of `size` bytes that pieces pass through. They are never lent, so whatever consumers do, they come free.

    | buffer | written by | read by | freed by |
    |---|---|---|---|
    | a slot | the copy of a piece | host, once the copy's event is done | its reading; one assembly at a time uses them |
    """

    def __init__(self, device: Device, size: int) -> None:
        self.size = size
        self._ring = HostRing.allocate(device, (size,), torch.uint8, _SLOTS)

    @property
    def ready(self) -> bool:
        """Whether a piece that was given up is not still being copied into the next slot."""
        return self._ring.ready

    def advance(self) -> HostSlot:
        return self._ring.advance()


class Assembly:
    """One payload. copied: the end of what has been launched so far."""

    def __init__(self, parts: Sequence[Part], nbytes: int, copier: Copier, ring: PieceRing) -> None:
        self.copied: Event = COMPLETED
        self._bytes: NDArray[np.uint8] = np.empty(nbytes, np.uint8)
        self._parts = parts
        self._copier = copier
        self._ring = ring
        self._left = deque(piece for part in parts for piece in cut(part, ring.size, MOST_ROWS))
        self._under_way: deque[tuple[Piece, HostSlot]] = deque()

    @property
    def launched(self) -> bool:
        """Whether nothing more will read the payload than what has been launched."""
        return not self._left

    @property
    def over(self) -> bool:
        return not self._left and not self._under_way

    def tensors(self) -> dict[str, Tensor]:
        """What the consumer gets, complete once `over`."""
        memory = torch.from_numpy(self._bytes)
        return {part.name: part.in_memory(memory) for part in self._parts}

    def collect(self) -> None:
        """Moves pieces that have come into their place."""
        while self._under_way and self._under_way[0][1].free:
            piece, slot = self._under_way.popleft()
            self._bytes[piece.start : piece.start + piece.nbytes] = slot.read()[: piece.nbytes]

    def launch(self) -> None:
        """Launches the copies that there is room for. The payload must be where it says it is (`PageSlice.moved`)."""
        while self._left and len(self._under_way) < _SLOTS and self._ring.ready and self._copier.ready:
            piece, slot = self._left.popleft(), self._ring.advance()
            slot.take()
            try:
                host = slot.tensor[: piece.nbytes].view(piece.part.dtype).view(piece.shape)
                self._copier.copy([(piece, host)])
            finally:
                self.copied = self._copier.end()
                slot.guard(self.copied)
            self._under_way.append((piece, slot))
