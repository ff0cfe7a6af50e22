"""Connectors with inline pieces that break one promise each."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import msgspec
import torch

from omni.connector import EdgeEnd, Pending, Reach, Received, Receiver, Ref, Sender
from omni.connector.pieces import Piece
from omni.connector.pool.sender import PoolRef, PoolSender
from omni.device import COMPLETED, Device, Event
from omni.payload import PageSlice, Payload
from omni.payload.copier import Transfer
from omni_shm.connector import SharedMemoryConnector
from tests.connectors.inline import (
    InlineConnector,
    InlinePending,
    InlinePiece,
    InlineReceiver,
    InlineRef,
    InlineSender,
)


class _Inline(InlineConnector):
    ref: type[InlineRef] = InlineRef
    pending: type[InlinePending] = InlinePending

    def sender(self, end: EdgeEnd) -> Sender:
        sender = self.sender_type(end)
        sender.ref = self.ref
        return sender

    def receiver(self, end: EdgeEnd, address: object) -> Receiver:
        receiver = self.receiver_type(end.device)
        receiver.pending = self.pending
        return receiver


class InlineIgnoresReady(_Inline):
    class ref(InlineRef):
        @property
        def readable(self) -> bool:
            return True


class InlineIgnoresMoved(_Inline):
    class ref(InlineRef):
        @property
        def readable(self) -> bool:
            return self._ready.done()


class InlineSleeps(_Inline):
    class ref(InlineRef):
        def pieces(self) -> Sequence[object]:
            time.sleep(0.01)
            return super().pieces()


class InlineClaimsRawTensors(_Inline):
    raw_device_tensors = True


class InlineClaimsTheProcess(_Inline):
    reach = Reach.PROCESS


class SharedMemoryClaimsRawTensors(SharedMemoryConnector):
    raw_device_tensors = True


class SharedMemoryAsksOnceForMoved(SharedMemoryConnector):
    """Before the first gather alone."""

    def sender(self, end: EdgeEnd) -> Sender:
        return _AsksOnceSender(super().sender(end))


class _AsksOnceSender:
    def __init__(self, sender: Sender) -> None:
        assert isinstance(sender, PoolSender)
        self._sender = sender
        self.address = sender.address
        self.peer_lost = sender.peer_lost
        self.close = sender.close

    def send(self, payload: Payload, ready: Event) -> Ref:
        return _AsksOnceRef(self._sender, payload, ready)


class _AsksOnceRef(PoolRef):
    begun = False

    def may_copy(self) -> bool:
        self.begun = self.begun or super().may_copy()
        return self.begun


class InlineNeverReportsGathers(_Inline):
    class ref(InlineRef):
        def transfer(self, piece: Piece, memory: torch.Tensor) -> Transfer:
            transfer = super().transfer(piece, memory)
            source = transfer.source
            if isinstance(source, PageSlice):
                source = PageSlice(source.pages, source.slots)
            return replace(transfer, source=source)


class InlineKeepsThePlace(_Inline):
    class ref(InlineRef):
        def __init__(self, sender: InlineSender, number: int, payload: Payload, ready: Event) -> None:
            tensors = {n: _Kept(t) if isinstance(t, PageSlice) else t for n, t in payload.tensors.items()}
            super().__init__(sender, number, Payload(payload.meta, tensors), ready)


class _Kept(PageSlice):
    """The place of the rows at one time."""

    def __init__(self, origin: PageSlice) -> None:
        super().__init__(origin.pages, origin.slots)
        self.origin = origin

    def gathered(self, until: Event) -> None:
        self.origin.gathered(until)


class InlineReversesPieces(_Inline):
    class ref(InlineRef):
        def pieces(self) -> Sequence[object]:
            return list(reversed(super().pieces()))


class InlineFreesBeforeItReads(_Inline):
    class ref(InlineRef):
        @property
        def released(self) -> bool:
            return self.aborted or self._ready.done()


class InlineChangesADtype(_Inline):
    class receiver_type(InlineReceiver):
        def upload(self, pending: InlinePending) -> Received:
            received = super().upload(pending)
            tensors = {n: _without_brain(t) for n, t in received.payload.tensors.items()}
            return Received(Payload(received.payload.meta, tensors), received.ready)


def _without_brain(tensor: torch.Tensor | PageSlice) -> torch.Tensor | PageSlice:
    brain = isinstance(tensor, torch.Tensor) and tensor.dtype is torch.bfloat16 and bool(tensor.numel())
    return tensor.view(torch.float16) if brain and isinstance(tensor, torch.Tensor) else tensor


class InlineLosesEmptyPayloads(_Inline):
    class ref(InlineRef):
        def pieces(self) -> Sequence[object]:
            return super().pieces() if self.left or self._under_way else ()


class InlineWaits(_Inline):
    class ref(InlineRef):
        def pieces(self) -> Sequence[object]:
            while not self._ready.done():
                pass
            return super().pieces()


class InlineSendsAborted(_Inline):
    class ref(InlineRef):
        def abort(self, reason: str) -> None:
            pass


class InlineSendsNoStructs(_Inline):
    class ref(InlineRef):
        def pieces(self) -> Sequence[object]:
            return [(piece,) for piece in super().pieces()]


class InlineHasNoAddress(_Inline):
    class sender_type(InlineSender):
        def __init__(self, end: EdgeEnd) -> None:
            super().__init__(end)
            self.address = None


class InlineIsAlwaysBusy(_Inline):
    class receiver_type(InlineReceiver):
        busy = True


class InlineIsNeverBusy(_Inline):
    class receiver_type(InlineReceiver):
        busy = False


class InlineKeepsReleasedMemory(_Inline):
    class receiver_type(InlineReceiver):
        def __init__(self, device: Device) -> None:
            super().__init__(device)
            self.kept: list[InlinePending] = []

        def tick(self) -> None:
            self.kept += [pending for pending, _ in self.released]
            super().tick()


class InlineIsReadyAtOnce(_Inline):
    """Undetectable on a device that does its work at once."""

    class receiver_type(InlineReceiver):
        def upload(self, pending: InlinePending) -> Received:
            return Received(super().upload(pending).payload, COMPLETED)


class InlineReusesReleasedMemory(_Inline):
    class pending(InlinePending):
        def release(self, after: Event) -> None:
            super().release(after)
            self._overwrite()

        def _overwrite(self) -> None:
            assert self.received is not None
            for tensor in self.received.payload.tensors.values():
                if isinstance(tensor, torch.Tensor) and tensor.numel():
                    tensor.fill_(1)


class InlineDropsReleasedMemory(_Inline):
    """Torch takes the memory for the next tensor, while phases of the consumer read it."""

    class pending(InlinePending):
        def release(self, after: Event) -> None:
            pass


class InlineReleasesAgain(InlineReusesReleasedMemory):
    """At the second release it takes the memory for other payloads."""

    class pending(InlineReusesReleasedMemory.pending):
        def release(self, after: Event) -> None:
            if any(pending is self for pending, _ in self._receiver.released):
                self._overwrite()
            InlinePending.release(self, after)


class InlineFreesAborted(InlineReusesReleasedMemory):
    class pending(InlineReusesReleasedMemory.pending):
        def release(self, after: Event) -> None:
            InlinePending.release(self, after)

        def abort(self) -> None:
            if self.received is not None:
                self._overwrite()


class InlineMixesEdges(_Inline):
    """Payloads of all edges share one table."""

    class receiver_type(InlineReceiver):
        shared: ClassVar[dict[int, Pending]] = {}

        def receive(self, piece: object) -> Pending:
            assert isinstance(piece, InlinePiece)
            if piece.payload not in self.shared or piece.head is None:
                self.shared[piece.payload] = super().receive(piece)
            return self.shared[piece.payload]

        def close(self) -> None:
            self.shared.clear()


class _Pooled(_Inline):
    """A payload takes its bytes from the pool until its consumer releases it: a pool that does not drain.

    Payloads larger than the pool wait until it is empty.
    """

    taken: ClassVar[dict[tuple[int, int], int]] = {}
    """Bytes by sender and payload; both ends are in one thread."""

    class ref(InlineRef):
        def pieces(self) -> Sequence[object]:
            key, taken = (id(self._sender), self._number), _Pooled.taken
            mine = [size for (sender, _), size in taken.items() if sender == id(self._sender)]
            size = sum(piece.nbytes for piece in self.left)
            if key not in taken and mine and sum(mine) + size > self._sender.pool_bytes:
                return ()
            if self.readable and not self.aborted:
                taken.setdefault(key, size)
            sent = [piece for piece in super().pieces() if isinstance(piece, InlinePiece)]
            return [Numbered(**msgspec.structs.asdict(piece), sender=id(self._sender)) for piece in sent]

        def abort(self, reason: str) -> None:
            super().abort(reason)
            if self.aborted:
                _Pooled.taken.pop((id(self._sender), self._number), None)

    class pending(InlinePending):
        def __init__(self, receiver: InlineReceiver, piece: InlinePiece) -> None:
            assert isinstance(piece, Numbered)
            self.key = piece.sender, piece.payload
            super().__init__(receiver, piece)

        def release(self, after: Event) -> None:
            super().release(after)
            _Pooled.taken.pop(self.key, None)

        def abort(self) -> None:
            _Pooled.taken.pop(self.key, None)

    class receiver_type(InlineReceiver):
        def discard(self, piece: object) -> None:
            assert isinstance(piece, Numbered)
            _Pooled.taken.pop((piece.sender, piece.payload), None)


class Numbered(InlinePiece, frozen=True, kw_only=True):
    sender: int


class InlinePoolNeverDrains(_Pooled):
    pass


class InlinePoolLosesDiscarded(_Pooled):
    class receiver_type(InlineReceiver):
        pass


class InlinePoolLosesAborted(_Pooled):
    class pending(_Pooled.pending):
        def abort(self) -> None:
            pass


# Of two processes.


class InlineKeepsPiecesInATable(_Inline):
    """The pieces are in this process, and their numbers travel."""

    table: ClassVar[dict[int, object]] = {}

    class ref(InlineRef):
        def pieces(self) -> Sequence[object]:
            pieces = super().pieces()
            for piece in pieces:
                InlineKeepsPiecesInATable.table[id(piece)] = piece
            return [PieceNumber(number=id(piece)) for piece in pieces]

    class receiver_type(InlineReceiver):
        def receive(self, piece: object) -> Pending:
            return super().receive(_looked_up(piece))

        def discard(self, piece: object) -> None:
            _looked_up(piece)

    class pending(InlinePending):
        def add(self, piece: object) -> None:
            super().add(_looked_up(piece))


def _looked_up(piece: object) -> object:
    assert isinstance(piece, PieceNumber)
    return InlineKeepsPiecesInATable.table.pop(piece.number)


class PieceNumber(msgspec.Struct, frozen=True, kw_only=True):
    number: int


class InlineForgetsThePeer(_Inline):
    """After its receiver has ended, its sender sends no further payload."""

    class sender_type(InlineSender):
        def peer_lost(self) -> None:
            self.ref = _Mute


class _Mute(InlineRef):
    def pieces(self) -> Sequence[object]:
        return ()


class InlineWaitsForThePeer(_Inline):
    """Its receiver is busy once the sender's process has ended."""

    class sender_type(InlineSender):
        def __init__(self, end: EdgeEnd) -> None:
            super().__init__(end)
            self.address = Process(pid=os.getpid())

    class receiver_type(InlineReceiver):
        pid = 0

        @property
        def busy(self) -> bool:
            return not os.path.exists(f"/proc/{self.pid}")

    def receiver(self, end: EdgeEnd, address: object) -> Receiver:
        receiver: Any = super().receiver(end, address)
        assert isinstance(address, Process)
        receiver.pid = address.pid
        return receiver  # type: ignore[no-any-return]


class Process(msgspec.Struct, frozen=True):
    pid: int


class InlineSendsWhatCannotBeSent(_Inline):
    class ref(InlineRef):
        def pieces(self) -> Sequence[object]:
            return [Unsendable(inner=piece) for piece in super().pieces()]


class Unsendable(msgspec.Struct):
    inner: object
    ref: object = msgspec.field(default_factory=lambda: object())
