"""Connects any two stages of a host: the piece of a payload carries the bytes of its tensors.

| memory | written by | read by | free when |
|---|---|---|---|
| the payload's | the producer's phases | the sender's copies | `InlineRef.freed` |
| the sender's, on the host | the sender's copies | the engine, which sends the piece | the piece is sent |
| the receiver's, on the host | `InlineReceiver.receive` | the receiver's copy | the copy is complete |
| the receiver's, on its device | the receiver's copy | the consumer's phases | released, and `after` is done |
"""

from collections.abc import Sequence

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.connector import EdgeEnd, Pending, Reach, Received, Receiver, Ref, Sender
from omni.connector.pieces import ByteMemory, CopiedRef, PayloadLayout, Piece, cut, parts_of
from omni.device import Event
from omni.payload import Payload
from omni.stage import PayloadCopier

COPY_BYTES = 2**24
COPY_ROWS = 4096


class InlineAddress(msgspec.Struct, frozen=True):
    """Empty: the pieces bring all that the receiver needs."""


class InlinePiece(msgspec.Struct, frozen=True):
    """A whole payload."""

    layout: PayloadLayout
    data: NDArray[np.uint8]


class InlineRef(CopiedRef[Piece]):
    """A payload at its producer."""

    def __init__(self, sender: "InlineSender", payload: Payload, ready: Event) -> None:
        parts, nbytes = parts_of(payload)
        copies = (piece for part in parts for piece in cut(part, COPY_BYTES, COPY_ROWS))
        super().__init__(payload, ready, copies)
        self._layout = PayloadLayout.of(payload, parts, nbytes)
        self._host = sender.device.host_tensor((nbytes,), torch.uint8)
        self._copies = sender.copies

    def pieces(self) -> Sequence[object]:
        if self.sent or self.aborted or not self.may_copy():
            return ()
        while self.left and self._copies.ready:
            piece = self.left.popleft()
            result = self._copies.copy([piece.transfer(self._host[piece.start :][: piece.nbytes])])
            self.copied = result.end
            result.check()
        self.sent = self.freed
        return (InlinePiece(self._layout, self._host.numpy()),) if self.sent else ()

    def abort(self, reason: str) -> None:
        self.aborted = True
        self.left.clear()


class InlineSender:
    """The producer's end. It has no list of payloads, so it has nothing to give up or to close."""

    def __init__(self, end: EdgeEnd) -> None:
        self.address = InlineAddress()
        self.device = end.device
        self.copies = PayloadCopier(end.device, end.device.stream(f"{end.edge}-send"), COPY_ROWS)

    def send(self, payload: Payload, ready: Event) -> Ref:
        return InlineRef(self, payload, ready)

    def peer_lost(self) -> None:
        pass

    def close(self) -> None:
        pass


class InlinePending:
    """A payload at its consumer. memory: uint8 `[nbytes]`."""

    def __init__(self, receiver: "InlineReceiver", memory: Tensor, received: Received) -> None:
        self._receiver = receiver
        self._memory = memory
        self._received = received

    def add(self, piece: object) -> None:
        raise AssertionError("a payload has one piece")

    def poll(self) -> Received | None:
        return self._received

    def release(self, after: Event) -> None:
        self._receiver.released.append((after, self._memory))

    def abort(self) -> None:
        pass  # the copy into the memory runs on the stream that would use it next


class InlineReceiver:
    """The consumer's end. released: memory of payloads that phases read until the event."""

    def __init__(self, end: EdgeEnd) -> None:
        self.released: list[tuple[Event, Tensor]] = []
        self._device = end.device
        self._stream = end.device.stream(f"{end.edge}-receive")

    @property
    def busy(self) -> bool:
        return bool(self.released)

    def receive(self, piece: object) -> Pending:
        assert isinstance(piece, InlinePiece)
        host = self._device.host_tensor(piece.data.shape, torch.uint8)
        host.numpy()[:] = piece.data
        memory = self._device.empty(piece.data.shape, torch.uint8, self._stream)
        self._device.launch(self._stream, copy_payload, memory, host)
        payload = piece.layout.payload(ByteMemory(memory))
        received = Received(payload, self._device.record(self._stream))
        return InlinePending(self, memory, received)

    def discard(self, piece: object) -> None:
        pass

    def tick(self) -> None:
        self.released = [each for each in self.released if not each[0].done()]

    def close(self) -> None:
        self.released = []


def copy_payload(into: Tensor, host: Tensor) -> None:
    """The phase of the receiver."""
    into.copy_(host, non_blocking=True)


class InlineConnector:
    reach = Reach.HOST
    raw_device_tensors = False

    def serves(self, producer: torch.device, consumer: torch.device) -> bool:
        return True

    def sender(self, end: EdgeEnd) -> Sender:
        return InlineSender(end)

    def receiver(self, end: EdgeEnd, address: object) -> Receiver:
        return InlineReceiver(end)
