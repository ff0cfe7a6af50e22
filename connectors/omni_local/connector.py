"""The connector of a producer and a consumer in one process on one device: it passes a reference and the event that
guards it.

| object | holds | until |
|---|---|---|
| `LocalRef` | the payload, by reference | `LocalPending.release` or `abort` |
| the producer's memory | the payload's tensors | `freed`: aborted, or released and the release event is done |
"""

from collections.abc import Sequence

import torch

from omni.connector import EdgeEnd, Pending, Reach, Received, Receiver, Ref, Sender
from omni.device import COMPLETED, Event
from omni.errors import OmniError
from omni.payload import Payload


class LocalRef:
    """A payload under way, at its producer. It is its own piece."""

    def __init__(self, payload: Payload, ready: Event) -> None:
        self.received: Received | None = Received(payload, ready)
        self.sent = False
        self._end: Event | None = None
        """The end of the consumer's last use; None until the payload is released or aborted."""

    @property
    def released(self) -> bool:
        return self._end is not None

    @property
    def freed(self) -> bool:
        return self._end is not None and self._end.done()

    def pieces(self) -> Sequence[object]:
        if self.sent or self.released:
            return ()
        self.sent = True
        return (self,)

    def abort(self, reason: str) -> None:
        if not self.sent:
            self.end(COMPLETED)

    def end(self, after: Event) -> None:
        """Ends the consumer's reads at `after`. Only the first call has an effect."""
        if self._end is None:
            self._end = after
            self.received = None


class LocalPending:
    """Arrives at once. Its event guards the tensors."""

    def __init__(self, ref: LocalRef) -> None:
        self._ref = ref

    def add(self, piece: object) -> None:
        raise AssertionError("a payload of the local connector has one piece")

    def poll(self) -> Received | None:
        if self._ref.received is None:
            raise OmniError("a payload was given up before it arrived")
        return self._ref.received

    def release(self, after: Event) -> None:
        self._ref.end(after)

    def abort(self) -> None:
        self._ref.end(COMPLETED)


class LocalSender:
    """Enqueues no work and keeps no list, so `close` frees nothing."""

    address = None

    def send(self, payload: Payload, ready: Event) -> Ref:
        return LocalRef(payload, ready)

    def peer_lost(self) -> None:
        pass

    def close(self) -> None:
        pass


class LocalReceiver:
    busy = False

    def receive(self, piece: object) -> Pending:
        return LocalPending(_own(piece))

    def discard(self, piece: object) -> None:
        _own(piece).end(COMPLETED)

    def tick(self) -> None:
        pass

    def close(self) -> None:
        pass


class LocalConnector:
    """Moves payloads by reference."""

    reach = Reach.PROCESS
    raw_device_tensors = True

    def serves(self, producer: torch.device, consumer: torch.device) -> bool:
        return producer == consumer

    def sender(self, end: EdgeEnd) -> Sender:
        return LocalSender()

    def receiver(self, end: EdgeEnd, address: object) -> Receiver:
        return LocalReceiver()


def _own(piece: object) -> LocalRef:
    if not isinstance(piece, LocalRef):
        raise TypeError(f"a {type(piece).__name__} is not a payload of the local connector")
    return piece
