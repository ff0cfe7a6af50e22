"""A connector of reach HOST whose pieces carry the bytes: a reference for the conformance suite, and a base for faults.

| buffer | written by | read by | free when |
|---|---|---|---|
| the payload's | the producer's phases | the copy of each piece | `freed`: all copies are complete, or it is aborted |
| a copy's | the copy, in a phase | the host, into the piece | the piece is returned |
| `InlinePending.memory` | `add`, on the host | the upload, in a phase | the upload is complete, as phases run at `release` |
| the received tensors | the upload | the consumer's phases | `release` and its event |
"""

from collections import deque
from collections.abc import Sequence
from itertools import count

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.connector import EdgeEnd, Pending, Reach, Received, Receiver, Ref, Sender
from omni.connector.pieces import ByteMemory, PayloadLayout, Piece, cut, parts_of
from omni.device import COMPLETED, Device, Event, Stream
from omni.payload import PageSlice, Payload
from omni.payload.copier import PayloadCopier, Transfer

MOST_ROWS = 4096
PIECE_BYTES = 2**18
PIECES_AT_ONCE = 2


class Address(msgspec.Struct, frozen=True):
    edge: str


class InlinePiece(msgspec.Struct, frozen=True):
    """head: with the first piece."""

    payload: int
    head: PayloadLayout | None
    start: int
    data: NDArray[np.uint8]
    last: bool


class InlineRef:
    def __init__(self, sender: "InlineSender", number: int, payload: Payload, ready: Event) -> None:
        self.sent = False
        self.copied: Event = COMPLETED
        self.aborted = False
        self.lost = False
        self._sender = sender
        self._number = number
        self._ready = ready
        self.payload = payload
        parts, nbytes = parts_of(payload)
        self._head: PayloadLayout | None = PayloadLayout.of(payload, parts, nbytes)
        self.left = deque(piece for part in parts for piece in cut(part, PIECE_BYTES, MOST_ROWS))
        self._under_way: deque[tuple[Piece, Tensor, Event]] = deque()

    @property
    def released(self) -> bool:
        return self.aborted or (not self.left and self.readable)

    @property
    def freed(self) -> bool:
        return self.released and self.copied.done()

    @property
    def readable(self) -> bool:
        """Whether work launched now may read the tensors."""
        slices = [t for t in self.payload.tensors.values() if isinstance(t, PageSlice)]
        return self._ready.done() and all(each.moved.done() for each in slices)

    def pieces(self) -> Sequence[object]:
        if self.sent or self.aborted:
            return ()
        while self.left and len(self._under_way) < PIECES_AT_ONCE and self.readable and self._sender.copier.ready:
            self._launch(self.left.popleft())
        pieces: list[object] = []
        while self._under_way and self._under_way[0][2].done():
            piece, memory, _ = self._under_way.popleft()
            pieces.append(self.piece(piece.start, memory.numpy().copy()))
        if self._head is not None and not self.left and not self._under_way and self.readable:  # without bytes
            pieces.append(self.piece(0, np.empty(0, np.uint8)))
        return pieces

    def abort(self, reason: str) -> None:
        if not self.sent:
            self.aborted = True

    def piece(self, start: int, data: NDArray[np.uint8]) -> InlinePiece:
        head, self._head = self._head, None
        self.sent = not self.left and not self._under_way
        return InlinePiece(self._number, head, start, data, self.sent)

    def transfer(self, piece: Piece, memory: Tensor) -> Transfer:
        return piece.transfer(memory)

    def _launch(self, piece: Piece) -> None:
        memory = self._sender.device.host_tensor((piece.nbytes,), torch.uint8)
        result = self._sender.copier.copy([self.transfer(piece, memory)])
        self.copied = result.end
        result.check()
        self._under_way.append((piece, memory, result.end))


class InlineSender:
    ref: type[InlineRef] = InlineRef

    def __init__(self, end: EdgeEnd) -> None:
        self.address: object = Address(end.edge)
        self.pool_bytes = end.pool_bytes
        self.device = end.device
        self.copier = PayloadCopier(end.device, end.device.stream("inline-out"), MOST_ROWS)
        self._numbers = count()

    def send(self, payload: Payload, ready: Event) -> Ref:
        return self.ref(self, next(self._numbers), payload, ready)

    def peer_lost(self) -> None:
        pass

    def close(self) -> None:
        pass


class InlinePending:
    def __init__(self, receiver: "InlineReceiver", piece: InlinePiece) -> None:
        assert piece.head is not None
        self._receiver = receiver
        self.head = piece.head
        self.memory = receiver.device.host_tensor((piece.head.nbytes,), torch.uint8)
        self.received: Received | None = None
        self.add(piece)

    def add(self, piece: object) -> None:
        assert isinstance(piece, InlinePiece)
        self.memory.numpy()[piece.start : piece.start + len(piece.data)] = piece.data
        if piece.last:
            self.received = self._receiver.upload(self)

    def poll(self) -> Received | None:
        return self.received

    def release(self, after: Event) -> None:
        self._receiver.released.append((self, after))

    def abort(self) -> None:
        pass


class InlineReceiver:
    """released: payloads whose memory may still be read."""

    pending: type[InlinePending] = InlinePending

    def __init__(self, device: Device) -> None:
        self.device = device
        self.stream: Stream = device.stream("inline-in")
        self.released: list[tuple[InlinePending, Event]] = []

    @property
    def busy(self) -> bool:
        return bool(self.released)

    def receive(self, piece: object) -> Pending:
        assert isinstance(piece, InlinePiece)
        return self.pending(self, piece)

    def discard(self, piece: object) -> None:
        assert isinstance(piece, InlinePiece)

    def tick(self) -> None:
        self.released = [each for each in self.released if not each[1].done()]

    def close(self) -> None:
        self.released = []

    def upload(self, pending: InlinePending) -> Received:
        memory = self.device.empty((pending.head.nbytes,), torch.uint8, self.stream)
        self.device.launch(self.stream, upload, memory, pending.memory)
        return Received(pending.head.payload(ByteMemory(memory)), self.device.record(self.stream))


class InlineConnector:
    reach = Reach.HOST
    raw_device_tensors = False
    sender_type: type[InlineSender] = InlineSender
    receiver_type: type[InlineReceiver] = InlineReceiver

    def serves(self, producer: torch.device, consumer: torch.device) -> bool:
        return True

    def sender(self, end: EdgeEnd) -> Sender:
        return self.sender_type(end)

    def receiver(self, end: EdgeEnd, address: object) -> Receiver:
        assert isinstance(address, Address)
        return self.receiver_type(end.device)


def upload(into: Tensor, host: Tensor) -> None:
    into.copy_(host, non_blocking=True)
