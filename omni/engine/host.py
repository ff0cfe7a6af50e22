"""A connector that delivers tensors in host memory.

| object | holds | until |
|---|---|---|
| `HostRef` | the producer's memory, through the wrapped connector | its copy is launched; free after the copy |
| `HostRef` | a pinned slot, unless assembled from pieces | `release` or `abort`, and the release event is done |

Only the engine's thread uses it. `Pending.poll` drives each copy.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.connector import Connector, Pending, Reach, Received, Ref
from omni.device import COMPLETED, Device, Event, HostRing, HostSlot, Stream
from omni.errors import OmniError
from omni.payload import PageSlice, Payload
from omni.stage.receiver import PayloadReceiver, Transfer

_SLOTS = 32
_SLOT_BYTES = 1 << 16
"""Bytes of 16 hidden states of 4,096 float32 numbers: payloads of decode steps always fit."""
_PIECE_BYTES = 1 << 18
MAX_ROWS = 4096
"""Page rows of one copy at most."""
_PIECE_SLOTS = 2
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


class Assembly:
    """The assembly of one payload. copied: the end of the copies launched so far.

    No consumer holds a slot of `ring`, so they always become free; a slot may still be written for an abandoned piece.

    | buffer | written by | read by | freed by |
    |---|---|---|---|
    | a slot | the copy of a piece | host, once the copy's event is done | the host's read; one assembly at a time |
    """

    def __init__(
        self, parts: Sequence[Part], nbytes: int, receiver: PayloadReceiver, ring: HostRing, piece_bytes: int
    ) -> None:
        self.copied: Event = COMPLETED
        self._bytes: NDArray[np.uint8] = np.empty(nbytes, np.uint8)
        self._parts = parts
        self._receiver = receiver
        self._ring = ring
        self._left = deque(piece for part in parts for piece in cut(part, piece_bytes, MAX_ROWS))
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
        while self._left and len(self._under_way) < _PIECE_SLOTS and self._ring.ready and self._receiver.ready:
            piece, slot = self._left.popleft(), self._ring.advance()
            slot.take()
            receipt = self._receiver.receive([piece.transfer(slot.tensor[: piece.nbytes])])
            self.copied = receipt.end
            slot.guard(receipt.end)
            receipt.check()
            self._under_way.append((piece, slot))


class HostRef:
    """A payload on its way to the consumer."""

    def __init__(self, inner: Ref, inner_connector: Connector) -> None:
        self.inner = inner
        self.slot: Tensor | None = None
        self.copied: Event = COMPLETED
        self.abort_reason: str | None = None
        self._connector = inner_connector
        self._released = False

    @property
    def released(self) -> bool:
        return self.inner.released

    @property
    def freed(self) -> bool:
        return self.inner.freed

    def release(self, after: Event) -> None:
        """Nothing reads the producer's memory after `after`. Only the first call has an effect."""
        if not self._released:
            self._released = True
            self._connector.release(self.inner, after)

    def abort(self, reason: str, read_until: Event) -> None:
        """Gives the payload up. read_until: the end of the launched copies; `COMPLETED` if there are none."""
        self.abort_reason = reason
        if read_until is not COMPLETED:
            self.release(read_until)
        elif not self._released:
            self._released = True
            self._connector.abort(self.inner, reason)


class SlotPool:
    """`count` pinned slots of `size` bytes. A slot belongs to a payload from its copy to the release of its lease.

    | buffer | written by | read by | freed by |
    |---|---|---|---|
    | a slot | the copy of a payload | the consumer, once the copy's event is done | the event given to `release` |

    If a slot is released before its copy is complete, the next copy into it follows on the same stream.
    """

    def __init__(self, device: Device, size: int, count: int) -> None:
        self.size = size
        self._free: deque[tuple[Tensor, Event]] = deque(
            (device.host_tensor((size,), torch.uint8), COMPLETED) for _ in range(count)
        )
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
    """A payload that is copied to host memory once it is readable at its producer."""

    def __init__(self, connector: "HostConnector", ref: HostRef, inner: Pending) -> None:
        self.ref = ref
        self.assembly: Assembly | None = None
        self._connector = connector
        self._inner = inner
        self._source: Received | None = None

    def poll(self) -> Received | None:
        if self.ref.abort_reason is not None:
            raise OmniError(f"a payload was given up before it arrived: {self.ref.abort_reason}")
        if self._source is None:
            self._source = self._inner.poll()
        source = self._source
        if source is None or not source.payload.tensors:
            return source
        return self._connector.bring(self, source)


class HostConnector:
    """Wraps the connector of an edge.

    A payload that fits into a free slot is copied there and delivered with the copy's event; the consumer waits for the
    event before it reads. Other payloads, one at a time, pass through a few more slots in pieces and are delivered in
    pageable memory. So a consumer that keeps payloads delays no other consumer.

    The producer's payload is released once its copy is launched. The edge's credit limits the host memory of a request.
    """

    raw_device_tensors = False

    def __init__(
        self,
        inner: Connector,
        device: Device,
        name: str,
        *,
        slots: int = _SLOTS,
        slot_bytes: int = _SLOT_BYTES,
        piece_bytes: int = _PIECE_BYTES,
    ) -> None:
        """name: of the edge. slots: number of slots, of `slot_bytes` each. piece_bytes: a multiple of 16."""
        self._inner = inner
        self._receiver = PayloadReceiver(device, device.stream(f"{name}-host"), MAX_ROWS)
        self._slots = SlotPool(device, slot_bytes, slots)
        self._piece_bytes = piece_bytes
        self._pieces = HostRing.allocate(device, (piece_bytes,), torch.uint8, _PIECE_SLOTS)
        self._queue: deque[HostPending] = deque()
        """Payloads to assemble from pieces, one after the other."""

    @property
    def reach(self) -> Reach:
        return self._inner.reach

    def send(self, payload: Payload, ready: Event, stream: Stream) -> Ref:
        return HostRef(self._inner.send(payload, ready, stream), self._inner)

    def receive(self, ref: Ref, stream: Stream) -> Pending:
        own = _own(ref)
        return HostPending(self, own, self._inner.receive(own.inner, stream))

    def release(self, ref: Ref, after: Event) -> None:
        own = _own(ref)
        self._release_slot(own, after)
        own.release(after)

    def abort(self, ref: Ref, reason: str) -> None:
        own = _own(ref)
        self._release_slot(own, COMPLETED)
        own.abort(reason, own.copied)
        self._leave_queue(own)

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
                self._leave_queue(pending.ref)
                return self._copy(pending.ref, slot, source.payload, parts)
            if pending not in self._queue:
                self._queue.append(pending)
            if self._queue[0] is not pending:
                return None
            pending.assembly = Assembly(parts, nbytes, self._receiver, self._pieces, self._piece_bytes)
        return self._assemble(pending.ref, pending.assembly, source)

    def _slot_for(self, parts: Sequence[Part], nbytes: int) -> Tensor | None:
        rows = sum(part.rows for part in parts if isinstance(part.tensor, PageSlice))
        if nbytes > self._slots.size or rows > MAX_ROWS or not self._receiver.ready:
            return None
        return self._slots.acquire()

    def _copy(self, ref: HostRef, slot: Tensor, payload: Payload, parts: Sequence[Part]) -> Received:
        """Copies a payload into a slot. If that fails, `release` or `abort` returns the slot."""
        ref.slot = slot
        host = {part.name: part.in_memory(slot) for part in parts}
        pieces = [Piece(part, 0, part.rows, 0, part.columns) for part in parts if part.nbytes]
        receipt = self._receiver.receive([piece.transfer(slot[piece.start :][: piece.nbytes]) for piece in pieces])
        ref.copied = receipt.end
        receipt.check()
        ref.release(receipt.end)
        return Received(Payload(payload.meta, host), ref.copied)

    def _assemble(self, ref: HostRef, assembly: Assembly, source: Received) -> Received | None:
        assembly.collect()
        if _arrived(source):
            try:
                assembly.launch()
            finally:
                ref.copied = assembly.copied
        if assembly.launched:
            ref.release(ref.copied)
        if not assembly.over:
            return None
        self._leave_queue(ref)
        return Received(Payload(source.payload.meta, assembly.tensors()), COMPLETED)

    def _leave_queue(self, ref: HostRef) -> None:
        self._queue = deque(pending for pending in self._queue if pending.ref is not ref)

    def _release_slot(self, ref: HostRef, after: Event) -> None:
        slot, ref.slot = ref.slot, None
        if slot is not None:
            self._slots.release(slot, after)


def _arrived(source: Received) -> bool:
    """Whether work launched now may read the tensors."""
    tensors = source.payload.tensors.values()
    return source.ready.done() and all(t.moved.done() for t in tensors if isinstance(t, PageSlice))


def _own(ref: Ref) -> HostRef:
    if not isinstance(ref, HostRef):
        raise TypeError(f"a {type(ref).__name__} is not a reference of an edge into host memory")
    return ref
