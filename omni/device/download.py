"""A step's results for the host: copied on a separate stream, or written by the step itself."""

from typing import NamedTuple

import torch
from torch import Tensor

from omni.device.base import Device, Event, Phase, SharedMemory, Stream
from omni.device.ring import HostRing, HostSlot


class Download(NamedTuple):
    """A download under way. ready: the host may read `slot`. made: the source and all earlier work are complete."""

    slot: HostSlot
    ready: Event
    made: Event


class _SlotRing:
    """A ring of slots: each step fills one, which the host reads later. next_slot: index of the next step's slot; a device buffer
    as deep as the ring uses it too."""

    def __init__(self, ring: HostRing) -> None:
        self._ring = ring
        self._newest: HostSlot | None = None
        self.next_slot = 0

    @property
    def ready(self) -> bool:
        return self._ring.ready

    def begin(self) -> None:
        """Begins a step. `forget` no longer applies to earlier downloads."""
        self._newest = None

    def forget(self) -> None:
        """Releases the slot of a failed step, which the host will not read."""
        if self._newest is not None:
            self._newest.release()

    def _advance(self) -> HostSlot:
        slot = self._newest = self._ring.advance()
        self.next_slot = (self.next_slot + 1) % len(self._ring)
        return slot


class Downloader(_SlotRing):
    """Copies to pinned memory.

    | buffer | written by | read by | freed by |
    |---|---|---|---|
    | host slot | the copy, on `stream` | host, after the copy's event | `HostSlot.release`, after read or failure |
    """

    def __init__(
        self, device: Device, after: Stream, stream: Stream, *, shape: tuple[int, ...], dtype: torch.dtype, slots: int
    ) -> None:
        """after: the stream that writes the sources. stream: the stream of the copies."""
        super().__init__(HostRing.allocate(device, shape, dtype, slots))
        self._device = device
        self._after = after
        self._stream = stream

    def send(self, copy: Phase, source: Tensor) -> Download:
        """Enqueues `copy(host, source)` after the work on `after` so far. `source` has the shape of a slot, or fewer rows."""
        made = self._device.record(self._after)
        self._device.wait(self._stream, made)
        slot = self._advance()
        slot.take()
        slot.claim()
        try:
            self._device.launch(self._stream, copy, slot.tensor[: source.shape[0]], source)
        finally:
            ready = self._device.record(self._stream)
            slot.guard(ready)
        return Download(slot, ready, made)


class SharedRing(_SlotRing):
    """A ring without copies: each step's phases write its slot directly.

    | buffer | written by | read by | freed by |
    |---|---|---|---|
    | host slot | the step's phases, on `stream` | host, after their event | as for a `Downloader` |

    Check `ready` before launching the step's phases: they write the slot, and `send` only hands it over.
    """

    def __init__(self, device: Device, stream: Stream, memory: SharedMemory) -> None:
        super().__init__(HostRing([HostSlot(device, slot) for slot in memory.host.unbind()]))
        self._device = device
        self._stream = stream

    @property
    def ready(self) -> bool:
        """As for a `Downloader`. Needs no event: the stream orders writes to an unclaimed slot."""
        return not self._ring.claimed

    def begin(self) -> None:
        """As for a `Downloader`. Raises RuntimeError if the host has still to read the slot of the step."""
        if not self.ready:
            raise RuntimeError("a step begins whose slot the host has not read: the ring is too small")
        super().begin()

    def send(self) -> Download:
        """Hands over the slot as `stream` has written it so far."""
        slot = self._advance()
        slot.claim()
        written = self._device.record(self._stream)
        slot.guard(written)
        return Download(slot, written, written)
