"""A receiver that delivers tensors in host memory.

| object | holds | until |
|---|---|---|
| `HostPending` | the payload of the wrapped receiver | its copy is launched; free after the copy |
| `HostPending` | a pinned slot, unless assembled from pieces | `release` or `abort`, and the release event is done |

Only the engine's thread uses it. `HostPending.poll` drives each copy.
"""

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.connector import Pending, Received, Receiver
from omni.connector.pieces import Part, Piece, cut, parts_of, view, whole
from omni.device import COMPLETED, Device, Event, HostRing, HostSlot
from omni.payload import PageSlice, Payload
from omni.payload.copier import PayloadCopier

_SLOTS = 32
_SLOT_BYTES = 1 << 16
"""Bytes of 16 hidden states of 4,096 float32 numbers: payloads of decode steps always fit."""
_PIECE_BYTES = 1 << 18
MAX_ROWS = 4096
"""Page rows of one copy at most."""
_PIECE_SLOTS = 2
"""Slots: one piece is copied off the device while the host moves the one before."""


class Assembly:
    """The assembly of one payload. copied: the end of the copies launched so far.

    No consumer holds a slot of `ring`, so they always become free; a slot may still be written for an abandoned piece.

    | buffer | written by | read by | freed by |
    |---|---|---|---|
    | a slot | the copy of a piece | host, once the copy's event is done | the host's read; one assembly at a time |
    """

    def __init__(
        self, parts: Sequence[Part], nbytes: int, copier: PayloadCopier, ring: HostRing, piece_bytes: int
    ) -> None:
        self.copied: Event = COMPLETED
        self._bytes: NDArray[np.uint8] = np.empty(nbytes, np.uint8)
        self._parts = parts
        self._copier = copier
        self._ring = ring
        self._left = deque(piece for part in parts for piece in cut(part, piece_bytes, MAX_ROWS))
        self._under_way: deque[tuple[Piece, HostSlot]] = deque()

    @property
    def launched(self) -> bool:
        """Whether all copies from the payload are launched."""
        return not self._left

    @property
    def complete(self) -> bool:
        return not self._left and not self._under_way

    def tensors(self) -> dict[str, Tensor]:
        """The consumer's tensors, valid once `complete`."""
        memory = torch.from_numpy(self._bytes)
        return {part.name: view(memory, part.start, part.dtype, part.shape) for part in self._parts}

    def collect(self) -> None:
        """Moves pieces whose copies are complete to their places."""
        while self._under_way and self._under_way[0][1].free:
            piece, slot = self._under_way.popleft()
            self._bytes[piece.start : piece.start + piece.nbytes] = slot.read()[: piece.nbytes]

    def launch(self) -> None:
        """Launches copies while slots are free. The payload must have arrived (`PageSlice.moved`)."""
        while self._left and len(self._under_way) < _PIECE_SLOTS and self._ring.ready and self._copier.ready:
            piece, slot = self._left.popleft(), self._ring.advance()
            slot.take()
            result = self._copier.copy([piece.transfer(slot.tensor[: piece.nbytes])])
            self.copied = result.end
            slot.guard(result.end)
            result.check()
            self._under_way.append((piece, slot))


class SlotPool:
    """`count` pinned slots of `size` bytes. A slot belongs to a payload from its copy to the release of its lease.

    | buffer | written by | read by | freed by |
    |---|---|---|---|
    | a slot | the copy of a payload | the consumer, once the copy's event is done | the event given to `release` |

    If a slot is released before its copy is complete, the next copy into it follows on the same stream.
    """

    def __init__(self, device: Device, size: int, count: int) -> None:
        self.size = size
        # Pinned at once: to pin any memory takes the driver milliseconds.
        slots = device.host_tensor((count, size), torch.uint8).unbind(0)
        self._free: deque[tuple[Tensor, Event]] = deque((slot, COMPLETED) for slot in slots)
        """Free slots, each with the end of its last consumer's reads."""

    def acquire(self) -> Tensor | None:
        """A free slot, uint8 `[size]`; None if there is none."""
        for place, (slot, after) in enumerate(self._free):
            if after.done():
                del self._free[place]
                return slot
        return None

    def release(self, slot: Tensor, after: Event) -> None:
        """Returns a slot that its consumer reads until `after`."""
        self._free.append((slot, after))


class HostPending:
    """A payload that is copied to host memory once it is readable at its producer.

    slot: the payload's, if it has one. copied: the end of the copies launched so far.
    """

    def __init__(self, receiver: "HostReceiver", inner: Pending) -> None:
        self.assembly: Assembly | None = None
        self.slot: Tensor | None = None
        self.copied: Event = COMPLETED
        self._receiver = receiver
        self._inner = inner
        self._inner_finished = False
        self._source: Received | None = None

    def add(self, piece: object) -> None:
        self._inner.add(piece)

    def poll(self) -> Received | None:
        if self._source is None:
            self._source = self._inner.poll()
        source = self._source
        if source is None or not source.payload.tensors:
            return source
        return self._receiver.bring(self, source)

    def release(self, after: Event) -> None:
        self._receiver.leave(self, after)
        self.release_source(after)

    def abort(self) -> None:
        self._receiver.leave(self, COMPLETED)
        if self.copied is not COMPLETED:
            self.release_source(self.copied)
        elif not self._inner_finished:
            self._inner_finished = True
            self._inner.abort()

    def release_source(self, after: Event) -> None:
        """Ends the reads of the producer's memory at `after`. Only the first call has an effect."""
        if not self._inner_finished:
            self._inner_finished = True
            self._inner.release(after)


class HostReceiver:
    """Wraps the receiver of an edge.

    A payload that fits into a free slot is copied there and delivered with the copy's event; the consumer waits for the
    event before it reads. Other payloads, one at a time, pass through a few more slots in pieces and are delivered in
    pageable memory. So a consumer that keeps payloads delays no other consumer.

    The producer's payload is released once its copy is launched. The edge's credit limits the host memory of a request.
    """

    def __init__(
        self,
        inner: Receiver,
        device: Device,
        name: str,
        *,
        slots: int = _SLOTS,
        slot_bytes: int = _SLOT_BYTES,
        piece_bytes: int = _PIECE_BYTES,
    ) -> None:
        """name: of the edge. slots: number of slots, of `slot_bytes` each. piece_bytes: a multiple of 16."""
        self._inner = inner
        self._copier = PayloadCopier(device, device.stream(f"{name}-host"), MAX_ROWS)
        self._slots = SlotPool(device, slot_bytes, slots)
        self._piece_bytes = piece_bytes
        self._pieces = HostRing.allocate(device, (piece_bytes,), torch.uint8, _PIECE_SLOTS)
        self._queue: deque[HostPending] = deque()
        """Payloads to assemble from pieces, one after the other."""

    @property
    def busy(self) -> bool:
        return self._inner.busy

    def receive(self, piece: object) -> Pending:
        return HostPending(self, self._inner.receive(piece))

    def discard(self, piece: object) -> None:
        self._inner.discard(piece)

    def tick(self) -> None:
        self._inner.tick()

    def close(self) -> None:
        self._queue.clear()
        self._inner.close()

    def bring(self, pending: HostPending, source: Received) -> Received | None:
        """Advances a payload with tensors by one step. Returns the consumer's payload when it can be delivered."""
        if pending.assembly is None:
            if not _arrived(source):
                return None
            parts, nbytes = parts_of(source.payload)
            slot = self._slot_for(parts, nbytes)
            if slot is not None:
                self._leave_queue(pending)
                return self._copy(pending, slot, source.payload, parts)
            if pending not in self._queue:
                self._queue.append(pending)
            if self._queue[0] is not pending:
                return None
            pending.assembly = Assembly(parts, nbytes, self._copier, self._pieces, self._piece_bytes)
        return self._assemble(pending, pending.assembly, source)

    def leave(self, pending: HostPending, after: Event) -> None:
        """Called when the payload is released: its slot is free once `after` is done, since the consumer reads it until then."""
        slot, pending.slot = pending.slot, None
        if slot is not None:
            self._slots.release(slot, after)
        self._leave_queue(pending)

    def _slot_for(self, parts: Sequence[Part], nbytes: int) -> Tensor | None:
        rows = sum(part.rows for part in parts if isinstance(part.tensor, PageSlice))
        if nbytes > self._slots.size or rows > MAX_ROWS or not self._copier.ready:
            return None
        return self._slots.acquire()

    def _copy(self, pending: HostPending, slot: Tensor, payload: Payload, parts: Sequence[Part]) -> Received:
        """Copies a payload into a slot. If that fails, `release` or `abort` returns the slot."""
        pending.slot = slot
        host = {part.name: view(slot, part.start, part.dtype, part.shape) for part in parts}
        pieces = [whole(part) for part in parts if part.nbytes]
        result = self._copier.copy([piece.transfer(slot[piece.start :][: piece.nbytes]) for piece in pieces])
        pending.copied = result.end
        result.check()
        pending.release_source(result.end)
        return Received(Payload(payload.meta, host), pending.copied)

    def _assemble(self, pending: HostPending, assembly: Assembly, source: Received) -> Received | None:
        assembly.collect()
        if _arrived(source):
            try:
                assembly.launch()
            finally:
                pending.copied = assembly.copied
        if assembly.launched:
            pending.release_source(pending.copied)
        if not assembly.complete:
            return None
        self._leave_queue(pending)
        return Received(Payload(source.payload.meta, assembly.tensors()), COMPLETED)

    def _leave_queue(self, pending: HostPending) -> None:
        if self._queue:
            self._queue = deque(each for each in self._queue if each is not pending)


def in_slot(tensors: Iterable[Tensor]) -> bool:
    """Whether tensors that `HostReceiver` delivered may lie in one of its slots, which the next payload uses after their release.
    Larger ones never do."""
    return sum(tensor.nbytes for tensor in tensors) <= _SLOT_BYTES


def _arrived(source: Received) -> bool:
    """Whether work launched now may read the tensors."""
    tensors = source.payload.tensors.values()
    return source.ready.done() and all(t.moved.done() for t in tensors if isinstance(t, PageSlice))
