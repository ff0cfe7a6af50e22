"""The producer's ends of the checks' edges, in this process."""

from dataclasses import dataclass, field

import msgspec
from torch import Tensor

from omni.connector import Connector, Reach, Ref, Sender
from omni.device import Device, Event
from omni.payload import Payload
from omni.testing.connectors.messages import EdgeOf
from omni.testing.connectors.promises import calling, require
from omni.testing.connectors.values import Memory, Meta, WatchedSlice, spoil


@dataclass(eq=False)
class Sent:
    """A payload under way.

    finished: it has returned its last piece. aborted: before that. spoiled: it was freed, and its memory is overwritten.
    gone: its connector is closed, so no promise holds any more.
    """

    key: int
    meta: Meta
    memories: list[Memory]
    payload: Payload
    ref: Ref
    filled: Event
    finished: bool = False
    aborted: bool = False
    spoiled: bool = False
    gone: bool = False
    _released: bool = field(default=False)

    @property
    def number(self) -> int:
        return self.meta.number

    def watch(self) -> None:
        """Requires the invariants that hold at any time."""
        freed = self.ref.freed  # before `released`: events go on between two calls
        released = self.ref.released
        require(released or not freed, "a payload that is freed is released (Ref.freed, Ref.released)")
        require(released or not self._released, "a released payload stays released (Ref.released)")
        require(freed or not self.spoiled, "a freed payload stays freed (Ref.freed)")
        self._released = released


class Producer:
    """Overwrites the memory of each payload as soon as it is freed.

    sent: by number, until their last piece is returned and they are freed.
    """

    def __init__(self, connector: Connector, device: Device) -> None:
        self.sent: dict[int, Sent] = {}
        self._connector = connector
        self.device = device
        self._stream = device.stream("check-producer")
        self.senders: dict[int, Sender] = {}

    def open(self, key: int, edge: EdgeOf) -> object:
        """Opens a sender. Returns its address."""
        with calling("Connector.sender", opens=True):
            self.senders[key] = self._connector.sender(edge.end(self.device))
            address: object = self.senders[key].address
        require(
            self._connector.reach is Reach.PROCESS or isinstance(address, msgspec.Struct),
            "beyond Reach.PROCESS an address is a msgspec.Struct (Sender.address)",
        )
        return address

    def send(self, key: int, meta: Meta, ready: Event | None = None) -> Sent:
        """Sends a payload. With a `ready` of the check, its memory holds wrong values until `fill`."""
        memories = [Memory(self.device, self._stream, meta, index) for index in range(len(meta.tensors))]
        for memory in memories:
            memory.fill() if ready is None else memory.spoil()
        filled = self.device.record(self._stream)
        payload = Payload(meta, {each.name: m.tensor for each, m in zip(meta.tensors, memories, strict=True)})
        with calling("Sender.send"):
            ref = self.senders[key].send(payload, filled if ready is None else ready)
        sent = Sent(key=key, meta=meta, memories=memories, payload=payload, ref=ref, filled=filled)
        self.sent[meta.number] = sent
        return sent

    def fill(self, sent: Sent) -> None:
        """Writes the right values; `sent.filled` is done when they are there."""
        for memory in sent.memories:
            memory.fill()
        sent.filled = self.device.record(self._stream)

    def spoil(self, base: Tensor) -> None:
        """Overwrites a place that its rows have left."""
        self.device.launch(self._stream, spoil, base)

    def abort(self, sent: Sent) -> None:
        sent.aborted = not sent.ref.sent
        with calling("Ref.abort"):
            sent.ref.abort("the check gives it up")

    def record(self) -> Event:
        """An event after the fills so far."""
        return self.device.record(self._stream)

    def turn(self) -> list[tuple[Sent, object]]:
        """The pieces that the receivers may have now."""
        pieces: list[tuple[Sent, object]] = []
        for sent in list(self.sent.values()):
            if sent.finished and sent.spoiled:
                del self.sent[sent.number]  # its memory may be large
            if sent.gone or (sent.finished and sent.spoiled):
                continue
            sent.watch()
            pieces += [(sent, piece) for piece in self._pieces(sent)]
            if sent.ref.freed and not sent.spoiled:
                self._spoil(sent)
        return pieces

    def _pieces(self, sent: Sent) -> list[object]:
        if sent.finished:
            return []
        with calling("Ref.pieces"):
            new = list(sent.ref.pieces())
            sent.finished = sent.ref.sent
            again = list(sent.ref.pieces()) if sent.finished else []
        require(not again, "a payload returns each piece once, and none after the last one (Ref.pieces, Ref.sent)")
        require(not (new and sent.aborted), "an aborted payload returns no further piece (Ref.abort)")
        return new

    def _spoil(self, sent: Sent) -> None:
        sent.spoiled = True
        for memory in sent.memories:
            if isinstance(memory.tensor, WatchedSlice) and self._connector.reach is not Reach.PROCESS and sent.ref.sent:
                require(
                    memory.tensor.reports > 0 or not memory.kind.shape[0],
                    "a sender reports each gather of a page slice (PageSlice.gathered)",
                )
            memory.spoil()
