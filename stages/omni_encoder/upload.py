"""Copies the inputs of a batch to the device, piece by piece.

| buffer | written by | read by | freed by |
|---|---|---|---|
| pinned slot | host, in `Transfer.fill` | the H2D copy of a piece | the event after that copy |
| features on the host | front end | host, in `Transfer.fill` | the launch of the batch, until which its jobs are kept |
| the batch's buffer, device | `clear_rest`, `copy_features` | `encode_batch`, same stream | stream order |
"""

from collections import deque

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.device import Device, HostRing, Stream
from omni_encoder.plan import EncodePlan, Part

_PIECE = 2 * 1024 * 1024
"""Bytes of a piece: copying it takes the host well under a millisecond, one tick of the engine loop."""
_SLOTS = 4


class Transfer:
    """A copy of host memory into `buffer`, in order. sources: bytes and their offsets in `buffer`."""

    def __init__(self, buffer: Tensor, sources: list[tuple[int, NDArray[np.uint8]]]) -> None:
        self.buffer = buffer
        self._sources = deque(sources)

    @property
    def over(self) -> bool:
        """Whether all bytes were sent."""
        return not self._sources

    def fill(self, piece: NDArray[np.uint8]) -> Tensor:
        """Writes the next bytes into `piece`, with zeros between sources. Returns their destination in the buffer."""
        start = end = self._sources[0][0]
        while self._sources:
            place, data = self._sources[0]
            room = start + piece.size - place
            if room <= 0:
                break
            count = min(room, data.size)
            piece[end - start : place - start] = 0
            piece[place - start : place - start + count] = data[:count]
            end = place + count
            self._sources.popleft()
            if count < data.size:
                self._sources.appendleft((end, data[count:]))
        return self.buffer[start:end]


class PieceUploader:
    """A small ring of pinned memory for batches of any size, one piece per tick."""

    def __init__(self, device: Device, stream: Stream, piece_bytes: int = _PIECE) -> None:
        self._device = device
        self._stream = stream
        self._ring = HostRing.allocate(device, (piece_bytes,), torch.uint8, _SLOTS)

    def begin(self, plan: EncodePlan, buffer: Tensor) -> Transfer:
        """Enqueues the writes without host memory: zeros behind the parts, and parts on the device."""
        rests: list[Tensor] = []
        sources: list[tuple[int, NDArray[np.uint8]]] = []
        for _, start, item in plan.placed():
            place = start
            for part in item.parts:
                end = place + part.nbytes
                if isinstance(part, Tensor) and part.device.type != "cpu":
                    data = part.flatten().view(torch.uint8)
                    self._device.launch(self._stream, copy_features, buffer[place:end], data)
                else:
                    sources.append((place, _host_bytes(part)))
                place = end
            if place < start + item.nbytes:
                rests.append(buffer[place : start + item.nbytes])
        if rests:
            self._device.launch(self._stream, clear_rest, rests)
        return Transfer(buffer, [source for source in sources if source[1].size])

    def advance(self, transfer: Transfer) -> bool:
        """Enqueues the next piece. Returns whether there was one, and a free slot for it."""
        if transfer.over or not self._ring.ready:
            return False
        slot = self._ring.advance()
        piece = slot.take()
        assert piece.dtype == np.uint8
        try:
            target = transfer.fill(piece.view(np.uint8))
            self._device.launch(self._stream, copy_features, target, slot.tensor[: target.shape[0]])
        finally:
            slot.guard(self._device.record(self._stream))
        return True


def _host_bytes(part: Part) -> NDArray[np.uint8]:
    array = part.flatten().view(torch.uint8).numpy() if isinstance(part, Tensor) else part.reshape(-1)
    return array.view(np.uint8)


def clear_rest(rests: list[Tensor]) -> None:
    """Zeroes the rest of the inputs: a mask does not remove the NaN of an earlier batch from a sum."""
    for rest in rests:
        rest.zero_()


def copy_features(target: Tensor, source: Tensor) -> None:
    target.copy_(source, non_blocking=True)
