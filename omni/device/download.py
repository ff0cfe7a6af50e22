"""What a step leaves for the host, copied on a stream of its own."""

from typing import NamedTuple

import torch
from torch import Tensor

from omni.device.base import Device, Event, Phase, Stream
from omni.device.ring import HostRing, HostSlot


class Sent(NamedTuple):
    """A copy on its way. ready: the host may read `slot`. made: what is copied was there, and all that was launched before."""

    slot: HostSlot
    ready: Event
    made: Event


class Downloader:
    """A ring of pinned slots that steps write and the host reads late.

    | buffer | written by | read by | freed by |
    |---|---|---|---|
    | host slot | the copy, on `stream` | host, after the copy's event | `HostSlot.release`: it was read, or its step failed |

    turn: the slot of the next copy; a device buffer that is as deep as the ring is used in the same turns.
    """

    def __init__(
        self, device: Device, after: Stream, stream: Stream, shape: tuple[int, ...], dtype: torch.dtype, slots: int
    ) -> None:
        """after: the stream whose work is copied; stream: the one that copies."""
        self._device = device
        self._after = after
        self._stream = stream
        self._slots = slots
        self._ring = HostRing(device, shape, dtype, slots)
        self._newest: HostSlot | None = None
        self.turn = 0

    @property
    def ready(self) -> bool:
        """Whether `send` may be called now."""
        return self._ring.ready

    def begin(self) -> None:
        """A step begins: what was sent before is not its."""
        self._newest = None

    def forget(self) -> None:
        """The step failed: nobody will read what it sent."""
        if self._newest is not None:
            self._newest.release()

    def send(self, copy: Phase, source: Tensor) -> Sent:
        """Enqueues `copy(host, source)` behind what is on `after` now, and nothing that follows there. `source` has the shape of a
        slot but for its first dimension, which may be shorter."""
        made = self._device.record(self._after)
        self._device.wait(self._stream, made)
        slot = self._newest = self._ring.advance()
        self.turn = (self.turn + 1) % self._slots
        slot.take()
        slot.claim()
        try:
            self._device.launch(self._stream, copy, slot.tensor[: source.shape[0]], source)
        finally:
            ready = self._device.record(self._stream)
            slot.guard(ready)
        return Sent(slot, ready, made)
