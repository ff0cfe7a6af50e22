"""Index arrays to the device: one packed copy out of a pinned ring."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.device import Device, HostRing, HostSlot, Stream


class IndexUpload:
    """A ring of pinned slots and the device buffer that each is copied to.

    | buffer | written by | read by | freed by |
    |---|---|---|---|
    | host slot | host, in `send` | the copy | the event that the caller guards the slot with |
    | device buffer | the copy | phases launched before the next `send`, same stream | stream order |
    """

    def __init__(self, device: Device, stream: Stream, words: int, slots: int) -> None:
        self._device = device
        self._stream = stream
        self._ring = HostRing(device, (words,), torch.int64, slots)
        self._packed = device.zeros((words,), torch.int64)

    @property
    def ready(self) -> bool:
        """Whether `send` may be called now."""
        return self._ring.ready

    def send(self, arrays: Sequence[NDArray[np.int64]]) -> tuple[HostSlot, list[Tensor]]:
        """Enqueues the copy. Returns the slot, for the caller to guard with a later event, and the device arrays."""
        slot = self._ring.advance()
        host = slot.take()
        views, end = [], 0
        for array in arrays:
            start, end = end, end + array.size
            host[start:end] = array.reshape(-1)
            views.append(self._packed[start:end].view(array.shape))
        self._device.launch(self._stream, copy_indexes, self._packed[:end], slot.tensor[:end])
        return slot, views


def copy_indexes(packed: Tensor, host: Tensor) -> None:
    packed.copy_(host, non_blocking=True)
