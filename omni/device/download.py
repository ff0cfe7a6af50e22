"""What a step leaves for the host: copied on a stream of its own, or written by the step itself."""

from typing import NamedTuple

import torch
from torch import Tensor

from omni.device.base import Device, Event, Phase, SharedMemory, Stream
from omni.device.ring import HostRing, HostSlot


class Sent(NamedTuple):
    """On its way to the host. ready: it may read `slot`. made: what it will read was made, and all that was launched before."""

    slot: HostSlot
    ready: Event
    made: Event


class _Turns:
    """A ring of slots that steps fill, one each, and the host reads late.

    turn: the slot of the next `send`; a device buffer that is as deep as the ring is used in the same turns.
    """

    def __init__(self, ring: HostRing) -> None:
        self._ring = ring
        self._newest: HostSlot | None = None
        self.turn = 0

    @property
    def ready(self) -> bool:
        """Whether the slot of the turn may be written."""
        return self._ring.ready

    def begin(self) -> None:
        """A step begins: what was sent before is not its."""
        self._newest = None

    def forget(self) -> None:
        """The step failed: nobody will read what it sent."""
        if self._newest is not None:
            self._newest.release()

    def _advance(self) -> HostSlot:
        slot = self._newest = self._ring.advance()
        self.turn = (self.turn + 1) % len(self._ring)
        return slot


class Downloader(_Turns):
    """Copies to pinned memory.

    | buffer | written by | read by | freed by |
    |---|---|---|---|
    | host slot | the copy, on `stream` | host, after the copy's event | `HostSlot.release`: it was read, or its step failed |
    """

    def __init__(
        self, device: Device, after: Stream, stream: Stream, shape: tuple[int, ...], dtype: torch.dtype, slots: int
    ) -> None:
        """after: the stream whose work is copied; stream: the one that copies."""
        super().__init__(HostRing.allocate(device, shape, dtype, slots))
        self._device = device
        self._after = after
        self._stream = stream

    def send(self, copy: Phase, source: Tensor) -> Sent:
        """Enqueues `copy(host, source)` behind what is on `after` now, and nothing that follows there. `source` has the shape of a
        slot but for its first dimension, which may be shorter."""
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
        return Sent(slot, ready, made)


class SharedRing(_Turns):
    """No copies: phases write the slots, each step that of its turn.

    | buffer | written by | read by | freed by |
    |---|---|---|---|
    | host slot | the step's phases, on `stream` | host, after the event behind them | as a `Downloader`'s |

    Ask `ready` before the step's phases are launched: they write the slot, `send` only hands it over.
    """

    def __init__(self, device: Device, stream: Stream, memory: SharedMemory) -> None:
        """memory: of all slots, the first dimension the turn."""
        super().__init__(HostRing([HostSlot(device, slot) for slot in memory.host.unbind()]))
        self._device = device
        self._stream = stream

    @property
    def ready(self) -> bool:
        """As a `Downloader`'s. No event is asked: of a slot that nobody is to read, what was launched before has written before."""
        return not self._ring.claimed

    def begin(self) -> None:
        """As a `Downloader`'s. Raises RuntimeError where the slot is still to be read: the step would write over it."""
        if not self.ready:
            raise RuntimeError("a step begins whose slot the host has not read: the ring is too small")
        super().begin()

    def send(self) -> Sent:
        """Hands over what `stream` has written of the turn's slot by then; nothing that follows there is waited for."""
        slot = self._advance()
        slot.claim()
        written = self._device.record(self._stream)
        slot.guard(written)
        return Sent(slot, written, written)
