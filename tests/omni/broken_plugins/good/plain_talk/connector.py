"""A connector of two stages of one engine: by reference. Payloads go back to their producer in the receiver's `tick`."""

from collections.abc import Sequence

import torch

from omni.connector import EdgeEnd, Pending, Reach, Received, Receiver, Ref, Sender
from omni.device import COMPLETED, Event
from omni.payload import Payload


class WireRef:
    """Its own piece. end: of the last read."""

    def __init__(self, received: Received) -> None:
        self.received = received
        self.end: Event | None = None
        self.sent = False
        self.freed = False

    @property
    def released(self) -> bool:
        return self.end is not None

    def pieces(self) -> Sequence[object]:
        self.sent = True
        return (self,)

    def abort(self, reason: str) -> None:
        if not self.sent:
            self.end, self.freed, self.sent = COMPLETED, True, True


class WireSender:
    address = None

    def send(self, payload: Payload, ready: Event) -> Ref:
        return WireRef(Received(payload, ready))

    def peer_lost(self) -> None:
        pass

    def close(self) -> None:
        pass


class WirePending:
    def __init__(self, receiver: "WireReceiver", ref: WireRef) -> None:
        self.receiver = receiver
        self.ref = ref

    def add(self, piece: object) -> None:
        raise AssertionError("a payload has one piece")

    def poll(self) -> Received | None:
        return self.ref.received

    def release(self, after: Event) -> None:
        self.ref.end = after
        self.receiver.over.append(self.ref)

    def abort(self) -> None:
        if not self.ref.released:
            self.release(COMPLETED)


class WireReceiver:
    def __init__(self) -> None:
        self.over: list[WireRef] = []

    @property
    def busy(self) -> bool:
        return bool(self.over)

    def receive(self, piece: object) -> Pending:
        assert isinstance(piece, WireRef)
        return WirePending(self, piece)

    def discard(self, piece: object) -> None:
        assert isinstance(piece, WireRef)
        WirePending(self, piece).abort()

    def tick(self) -> None:
        for ref in self.over:
            ref.freed = ref.end is not None and ref.end.done()
        self.over = [ref for ref in self.over if not ref.freed]

    def close(self) -> None:
        pass


class WireConnector:
    reach = Reach.PROCESS
    raw_device_tensors = True

    def serves(self, producer: torch.device, consumer: torch.device) -> bool:
        return producer == consumer

    def sender(self, end: EdgeEnd) -> Sender:
        return WireSender()

    def receiver(self, end: EdgeEnd, address: object) -> Receiver:
        return WireReceiver()
