"""Connectors like the local one that break one promise each."""

from collections.abc import Sequence
from typing import ClassVar

import torch

from omni.connector import EdgeEnd, Reach, Received, Receiver, Sender
from omni.device import COMPLETED, Event
from omni.payload import PageSlice, Payload
from omni_local.connector import LocalConnector, LocalPending, LocalReceiver, LocalRef, LocalSender


class _Local(LocalConnector):
    """The local connector with other classes."""

    ref: type[LocalRef] = LocalRef
    pending: type[LocalPending] = LocalPending
    sender_type: type[LocalSender] = LocalSender
    receiver_type: type[LocalReceiver] = LocalReceiver

    def sender(self, end: EdgeEnd) -> Sender:
        sender, make = self.sender_type(), self.ref
        if type(sender).send is LocalSender.send:
            sender.send = make  # type: ignore[method-assign]
        return sender

    def receiver(self, end: EdgeEnd, address: object) -> Receiver:
        receiver, make = self.receiver_type(), self.pending
        if type(receiver).receive is LocalReceiver.receive:
            receiver.receive = make  # type: ignore[method-assign]
        return receiver


class LocalFreesEarly(_Local):
    class pending(LocalPending):
        def release(self, after: Event) -> None:
            self._ref.end(COMPLETED)


class LocalReleasesAgain(_Local):
    """The last release counts."""

    class pending(LocalPending):
        def release(self, after: Event) -> None:
            self._ref.end(after)
            self._ref._end = after


class LocalAbortsReleased(_Local):
    class pending(LocalPending):
        def abort(self) -> None:
            self._ref._end = COMPLETED


class LocalForgetsTheProducersAbort(_Local):
    class ref(LocalRef):
        def abort(self, reason: str) -> None:
            pass


class LocalForgetsTheConsumersAbort(_Local):
    class pending(LocalPending):
        def abort(self) -> None:
            pass


class LocalAbortsSent(_Local):
    class ref(LocalRef):
        def abort(self, reason: str) -> None:
            self.end(COMPLETED)


class LocalIgnoresReady(_Local):
    class ref(LocalRef):
        def __init__(self, payload: Payload, ready: Event) -> None:
            super().__init__(payload, COMPLETED)


class LocalCopies(_Local):
    class ref(LocalRef):
        def __init__(self, payload: Payload, ready: Event) -> None:
            tensors = {n: t.clone() if isinstance(t, torch.Tensor) else t for n, t in payload.tensors.items()}
            super().__init__(Payload(payload.meta, tensors), ready)


class LocalCopiesSlices(_Local):
    class ref(LocalRef):
        def __init__(self, payload: Payload, ready: Event) -> None:
            tensors = {
                n: PageSlice(t.pages, t.slots) if isinstance(t, PageSlice) else t for n, t in payload.tensors.items()
            }
            super().__init__(Payload(payload.meta, tensors), ready)


class LocalDeniesItsReferences(_Local):
    raw_device_tensors = False


class LocalWaits(_Local):
    class pending(LocalPending):
        def release(self, after: Event) -> None:
            while not after.done():
                pass
            super().release(after)


class LocalMixesUp(_Local):
    """Brings the newest payload, whichever was asked for."""

    newest: ClassVar[LocalRef]

    class ref(LocalRef):
        def __init__(self, payload: Payload, ready: Event) -> None:
            super().__init__(payload, ready)
            LocalMixesUp.newest = self

    class pending(LocalPending):
        def poll(self) -> Received | None:
            return LocalMixesUp.newest.received


class LocalForgetsDiscards(_Local):
    class receiver_type(LocalReceiver):
        def discard(self, piece: object) -> None:
            pass


class LocalRepeatsPieces(_Local):
    class ref(LocalRef):
        def pieces(self) -> Sequence[object]:
            self.sent = True
            return () if self.released else (self,)


class LocalClosesOnce(_Local):
    class sender_type(LocalSender):
        closed = False

        def close(self) -> None:
            assert not self.closed
            self.closed = True


class LocalServesNothing(_Local):
    def serves(self, producer: torch.device, consumer: torch.device) -> bool:
        return False


class LocalClaimsTheHost(_Local):
    reach = Reach.HOST
