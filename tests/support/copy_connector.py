"""A connector between engines: a piece is the payload's struct, or the host copy of one tensor."""

from collections import deque
from collections.abc import Sequence
from itertools import count
from weakref import WeakValueDictionary

import msgspec
import torch
from torch import Tensor

from omni.connector import EdgeEnd, Pending, Reach, Received, Receiver, Ref, Sender
from omni.device import COMPLETED, Event
from omni.ipc import Typed
from omni.payload import PageSlice, Payload


class Address(msgspec.Struct, frozen=True):
    """pool: of the sender. peer: how many receivers it has lost."""

    pool: int
    peer: int


class Head(msgspec.Struct, frozen=True, tag=True):
    serial: int
    meta: Typed[msgspec.Struct]
    names: tuple[str, ...]


class Body(msgspec.Struct, frozen=True, tag=True):
    serial: int
    name: str
    values: torch.Tensor


class CopyConnector:
    """sending, arriving: whether anything is sent here, and arrives here. refused: opens no receiver."""

    reach = Reach.HOST
    raw_device_tensors = False

    def __init__(self) -> None:
        self.sending = self.arriving = True
        self.refused = False
        self.senders: list[CopySender] = []
        self.receivers: list[CopyReceiver] = []

    def serves(self, producer: torch.device, consumer: torch.device) -> bool:
        return True

    def sender(self, end: EdgeEnd) -> Sender:
        self.senders.append(CopySender(self))
        return self.senders[-1]

    def receiver(self, end: EdgeEnd, address: object) -> Receiver:
        assert isinstance(address, Address)
        if self.refused:
            raise OSError("no memory is mapped")
        self.receivers.append(CopyReceiver(self, address))
        return self.receivers[-1]


_numbers = count()
_pools: "WeakValueDictionary[int, CopySender]" = WeakValueDictionary()


class CopySender:
    """out: pieces that the receiver has not given back. lost: receivers that have ended."""

    def __init__(self, connector: CopyConnector) -> None:
        self.connector = connector
        self.refs: list[CopyRef] = []
        self.out: set[tuple[int, str]] = set()
        self.lost = 0
        self.closed = False
        self._number = next(_numbers)
        _pools[self._number] = self

    @property
    def address(self) -> Address:
        return Address(self._number, self.lost)

    def send(self, payload: Payload, ready: Event) -> Ref:
        self.refs.append(CopyRef(self, len(self.refs), payload, ready))
        return self.refs[-1]

    def peer_lost(self) -> None:
        self.lost += 1
        self.out.clear()

    def close(self) -> None:
        self.closed = True


class CopyRef:
    """Gives one piece at a time. Its payload is free once it is copied."""

    def __init__(self, sender: CopySender, serial: int, payload: Payload, ready: Event) -> None:
        self.sent = self.released = self.freed = False
        self._sender = sender
        self._serial = serial
        self._payload = payload
        self._ready = ready
        self._left: deque[Head | Body] = deque()

    def pieces(self) -> Sequence[object]:
        if self.sent or not self._sender.connector.sending or not self._ready.done():
            return ()
        if not self.freed:
            self._copy()
        piece = self._left.popleft()
        self.sent = not self._left
        self._sender.out.add(key(piece))
        return (piece,)

    def abort(self, reason: str) -> None:
        if not self.sent:
            self._left.clear()
            self.released = self.freed = True

    def _copy(self) -> None:
        tensors = self._payload.tensors
        self._left.append(Head(self._serial, Typed(self._payload.meta), tuple(tensors)))
        self._left.extend(Body(self._serial, name, values_of(tensor)) for name, tensor in tensors.items())
        self.released = self.freed = True


class CopyReceiver:
    """pending: received payloads that are neither released nor given up. discarded: pieces."""

    def __init__(self, connector: CopyConnector, address: Address) -> None:
        self.connector = connector
        self.pending: set[CopyPending] = set()
        self.discarded: list[Head | Body] = []
        self.closed = False
        self._address = address
        self._returned: list[tuple[list[Head | Body], Event]] = []

    @property
    def busy(self) -> bool:
        return bool(self.pending or self._returned)

    def receive(self, piece: object) -> Pending:
        assert isinstance(piece, Head), "the first piece comes first"
        pending = CopyPending(self, piece)
        self.pending.add(pending)
        return pending

    def discard(self, piece: object) -> None:
        assert isinstance(piece, Head | Body)
        self.discarded.append(piece)
        self.give_back([piece], COMPLETED)

    def give_back(self, pieces: list[Head | Body], after: Event) -> None:
        assert not self.closed, "a receiver outlives its payloads"
        self._returned.append((pieces, after))

    def tick(self) -> None:
        left = []
        sender = _pools.get(self._address.pool)
        for pieces, after in self._returned:
            if not after.done():
                left.append((pieces, after))
            elif sender is not None and sender.lost == self._address.peer:
                for piece in pieces:
                    sender.out.remove(key(piece))
        self._returned = left

    def close(self) -> None:
        self.closed = True


class CopyPending:
    def __init__(self, receiver: CopyReceiver, head: Head) -> None:
        self._receiver = receiver
        self._head = head
        self._bodies: dict[str, Body] = {}

    def add(self, piece: object) -> None:
        assert isinstance(piece, Body)
        assert piece.serial == self._head.serial
        assert piece.name not in self._bodies
        self._bodies[piece.name] = piece

    def poll(self) -> Received | None:
        if not self._receiver.connector.arriving or len(self._bodies) < len(self._head.names):
            return None
        tensors = {name: self._bodies[name].values for name in self._head.names}
        return Received(Payload(self._head.meta.value, tensors), COMPLETED)

    def release(self, after: Event) -> None:
        self._receiver.pending.remove(self)
        self._receiver.give_back([self._head, *self._bodies.values()], after)

    def abort(self) -> None:
        if self in self._receiver.pending:
            self.release(COMPLETED)


def key(piece: Head | Body) -> tuple[int, str]:
    return piece.serial, piece.name if isinstance(piece, Body) else ""


def values_of(tensor: Tensor | PageSlice) -> Tensor:
    """A copy in host memory."""
    return tensor.rows(torch.from_numpy(tensor.slots)) if isinstance(tensor, PageSlice) else tensor.clone()
