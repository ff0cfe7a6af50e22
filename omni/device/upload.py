"""Packed host-to-device copies: numpy arrays side by side in a pinned slot, and their views on the device."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.device.base import COMPLETED, Device, Stream
from omni.device.ring import HostRing, HostSlot


@dataclass(frozen=True, slots=True)
class PackedSpan:
    """The position of an array in the packed buffer."""

    start: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Upload:
    """Arrays of one copy, while the host fills them in."""

    def __init__(self, slot: HostSlot, host: NDArray[np.int64]) -> None:
        self.slot = slot
        self._host = host
        self.size = 0

    def add(self, array: NDArray[np.int64]) -> PackedSpan:
        end = self.size + array.size
        if end > self._host.size:
            raise RuntimeError(f"the arrays take {end} values, the upload buffer has {self._host.size}")
        self._host[self.size : end] = array.reshape(-1)
        span = PackedSpan(self.size, array.shape)
        self.size = end
        return span

    def content(self) -> bytes:
        """A copy of the added values."""
        return self._host[: self.size].tobytes()

    def add_floats(self, array: NDArray[np.float64]) -> PackedSpan:
        """Copies the bits of float64 `array` in; viewed as float64 on the device."""
        return self.add(np.ascontiguousarray(array).view(np.int64))


class Uploader:
    """A ring of pinned slots, and the device buffer of each.

    | buffer | written by | read by | freed by |
    |---|---|---|---|
    | host slot | host, `begin` to `launch` | the H2D copy | the event after the copy |
    | device buffer | the H2D copy | phases on the same stream | stream order: the next copy follows them |
    """

    def __init__(self, device: Device, stream: Stream, capacity: int, slots: int) -> None:
        self._device = device
        self._stream = stream
        self._ring = HostRing.allocate(device, (capacity,), torch.int64, slots)
        self._packed = device.zeros((capacity,), torch.int64)

    @property
    def ready(self) -> bool:
        return self._ring.ready

    def begin(self) -> Upload:
        slot = self._ring.advance()
        host = slot.take()
        assert host.dtype == np.int64
        return Upload(slot, host.view(np.int64))

    def cancel(self, upload: Upload) -> None:
        """Returns the slot of an upload that will not be launched."""
        upload.slot.guard(COMPLETED)

    def launch(self, upload: Upload) -> None:
        """Enqueues the copy. The slot is free when the copy is complete or could not be enqueued."""
        slot = upload.slot
        try:
            self._device.launch(self._stream, copy_upload, self._packed[: upload.size], slot.tensor[: upload.size])
        finally:
            slot.guard(self._device.record(self._stream))

    def send(self, arrays: Sequence[NDArray[np.int64]]) -> list[Tensor]:
        """Uploads arrays in one call. Returns them on the device, valid as for `view`."""
        upload = self.begin()
        try:
            spans = [upload.add(array) for array in arrays]
        except RuntimeError:
            self.cancel(upload)
            raise
        self.launch(upload)
        return [self.view(span) for span in spans]

    def view(self, span: PackedSpan) -> Tensor:
        """The array on the device, valid for phases launched before the next `launch`."""
        return self._packed[span.start : span.start + span.size].view(span.shape)


def copy_upload(packed: Tensor, slot: Tensor) -> None:
    packed.copy_(slot, non_blocking=True)
