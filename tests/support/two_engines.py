"""Two engines of fake stages in one thread, and the messages between them in memory, encoded as between two processes."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from weakref import WeakValueDictionary

import msgspec
import numpy as np
import torch
from torch import Tensor

from omni.connector import Connector, EdgeEnd, Pending, Reach, Received, Receiver, Ref, Sender
from omni.device import COMPLETED, Device, Event
from omni.device.cpu import CpuDevice
from omni.engine import Engine, EngineRequest
from omni.engine.admission import Admission
from omni.engine.command_queue import LocalCommandQueue
from omni.engine.orchestrator import Orchestrator
from omni.engine.peer_messages import LinkClosed, PeerMessage
from omni.engine.peers import EdgeEnds, OpenEdge
from omni.engine.request import AbortRequest, ConnectPeer, SafeSink, SubmitRequest
from omni.errors import OmniError
from omni.ipc import Codec, Typed
from omni.payload import PageSlice, Payload
from omni.pipeline import Edge, Pipeline
from omni.pipeline.adapter import AdapterFactory, PassThrough
from tests.support.fake_graph import CountingConnector, FakeWorker, Note, Recorder, fake_pipeline, host

# A connector between engines: a piece is the payload's struct, or the host copy of one tensor.


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


# Messages in memory.


class MemoryLink:
    """An end of a link. stuck: whether `flush` sends nothing. most: messages that one `take` returns; None for all."""

    def __init__(self) -> None:
        self.stuck = False
        self.most: int | None = None
        self.closed = False
        self.sent: list[PeerMessage] = []
        self._codec: Codec[PeerMessage] = Codec(PeerMessage)
        self._unsent: deque[tuple[bytes, int | None]] = deque()
        self._arrived: deque[tuple[bytes, int | None]] = deque()
        self._other: MemoryLink

    @staticmethod
    def pair() -> "tuple[MemoryLink, MemoryLink]":
        one, other = MemoryLink(), MemoryLink()
        one._other, other._other = other, one
        return one, other

    def send(self, message: PeerMessage) -> None:
        if not self.closed:
            self._unsent.append(self._codec.encode(message))
            self.sent.append(message)

    def flush(self) -> None:
        if not self.stuck and not self.closed:
            self._other._arrived.extend(self._unsent)
            self._unsent.clear()

    @property
    def unsent(self) -> bool:
        return bool(self._unsent)

    def take(self) -> Sequence[PeerMessage]:
        assert not self.closed
        if not self._arrived and self._other.closed:
            raise LinkClosed
        count = len(self._arrived) if self.most is None else min(self.most, len(self._arrived))
        return [self._codec.decode(*self._arrived.popleft()) for _ in range(count)]

    @property
    def waiting(self) -> bool:
        """Whether messages have arrived that were not taken."""
        return bool(self._arrived)

    def close(self) -> None:
        self.closed = True

    def kinds(self) -> list[str]:
        """The types of the messages that were sent."""
        return [type(message).__name__ for message in self.sent]


# The engines.

HERE, THERE = "cpu", "cpu/2"
"""The places."""
AT = {"seer": HERE, "writer": HERE, "speaker": THERE}
"""The places of stages."""
EDGE = "writer->speaker"


class HoldingCommandQueue(LocalCommandQueue):
    """held: requests that have arrived and are not taken yet."""

    def __init__(self) -> None:
        super().__init__()
        self.held: set[str] = set()

    def holds(self, request_id: str) -> bool:
        return request_id in self.held


class FakeEngine:
    """The engine on a place. connector: for edges to other places; edges here have one of `local` each."""

    def __init__(
        self,
        place: str,
        at: Mapping[str, str],
        pipeline: Pipeline,
        adapters: Mapping[str, AdapterFactory],
        max_active: int,
        workers: Mapping[str, FakeWorker] | None = None,
        device: Device | None = None,
    ) -> None:
        self.place = place
        self.device = device or CpuDevice()
        own = [stage.name for stage in pipeline.stages if at[stage.name] == place]
        self.workers = dict(workers) if workers is not None else {name: FakeWorker() for name in own}
        self.connector = CopyConnector()
        self.local = {edge.name: CountingConnector() for edge in pipeline.edges}
        self.command_queue = HoldingCommandQueue()
        self.ends = EdgeEnds(place, self._edges(pipeline, at), self._end)
        made: dict[str, AdapterFactory] = {edge.name: PassThrough for edge in pipeline.edges}
        admission: Admission[SubmitRequest] = Admission(max_active, 10_000)
        self.orchestrator = Orchestrator(
            pipeline,
            workers=self.workers,
            adapters=made | dict(adapters),
            ends=self.ends,
            admission=admission,
            place=place,
            is_held=self.command_queue.holds,
        )
        self.engine = Engine(
            self.device,
            self.orchestrator,
            workers=self.workers,
            ends=self.ends,
            memory={},
            command_queue=self.command_queue,
        )

    def _edges(self, pipeline: Pipeline, at: Mapping[str, str]) -> list[OpenEdge]:
        found = []
        for edge in pipeline.edges:
            producer, consumer = at[edge.producer], at[edge.consumer]
            connector: Connector = self.local[edge.name] if producer == consumer else self.connector
            if self.place in (producer, consumer):
                found.append(OpenEdge(edge, connector, producer, consumer))
        return found

    def _end(self, edge: Edge) -> EdgeEnd:
        return EdgeEnd(edge.name, self.device, edge.pool_bytes)

    def abort(self, request_id: str, error: OmniError, number: int = 0) -> None:
        self.command_queue.put(AbortRequest(request_id, error, number))

    @property
    def kept(self) -> list[str]:
        """Requests for which messages are kept."""
        return [request_id for peer in self.ends._peers.values() for request_id in peer.early]

    def assert_nothing_left(self) -> None:
        """Once all requests are over and all payloads released."""
        assert self.engine.idle, (self.engine.usage(), self.orchestrator.unfinished, self.orchestrator.busy)
        assert self.kept == []
        assert not self.orchestrator._draining
        assert not self.orchestrator._routes._outs
        assert not self.orchestrator._routes._ins
        for sender in self.connector.senders:
            assert all(ref.freed for ref in sender.refs)
            assert sender.out == set(), "pieces that nobody gave back"
        for receiver in self.connector.receivers:
            assert not receiver.pending


class TwoEngines:
    """The engines `here` and `there`, connected. at: the places of stages. connected: results of `ConnectPeer`, by
    place."""

    def __init__(
        self,
        at: Mapping[str, str] = AT,
        *,
        credit: int = 64,
        adapters: Mapping[str, AdapterFactory] | None = None,
        max_active: Mapping[str, int] | None = None,
        pipeline: Pipeline | None = None,
        connect: bool = True,
    ) -> None:
        self.at = at
        self.pipeline = pipeline or fake_pipeline(credit)
        self._adapters = adapters or {}
        self._max_active = max_active or {}
        self.engines = {place: self._make(place) for place in (HERE, THERE)}
        self.links: dict[str, MemoryLink] = {}
        self.connected: dict[str, list[OmniError | None]] = {HERE: [], THERE: []}
        self._numbers: dict[str, int] = {}
        if connect:
            self.connect()

    def _make(self, place: str) -> FakeEngine:
        return FakeEngine(place, self.at, self.pipeline, self._adapters, self._max_active.get(place, 256))

    @property
    def here(self) -> FakeEngine:
        return self.engines[HERE]

    @property
    def there(self) -> FakeEngine:
        return self.engines[THERE]

    def worker(self, stage: str) -> FakeWorker:
        return self.engines[self.at[stage]].workers[stage]

    def connect(self) -> None:
        """Both ends of a new link."""
        self.links = dict(zip((HERE, THERE), MemoryLink.pair(), strict=True))
        for place, other in ((HERE, THERE), (THERE, HERE)):
            command = ConnectPeer(other, self.links[place], self.connected[place].append)
            self.engines[place].command_queue.put(command)
        self.settle()

    def end(self, place: str) -> FakeEngine:
        """The engine of a place ends without a word, and a new one takes its place, unconnected. Returns the old one."""
        ended = self.engines[place]
        self.links[place].close()
        self.engines[place] = self._make(place)
        return ended

    def request(self, request_id: str, *modalities: str, seer: bool = False) -> EngineRequest:
        """number: the next one, if the request is new."""
        number = self._numbers.setdefault(request_id, len(self._numbers) + 1)
        fed = {"writer": [host(0)]} | ({"seer": [host(1)]} if seer else {})
        stages = self.pipeline.active(modalities, fed)
        places = {stage: self.at[stage] for stage in stages}
        return EngineRequest(request_id, frozenset(modalities), fed, number=number, places=places)

    def number(self, request_id: str) -> int:
        return self._numbers[request_id]

    def submit_at(self, place: str, request: EngineRequest) -> Recorder:
        recorder, engine = Recorder(), self.engines[place]
        fed = {name: given for name, given in request.inputs.items() if name in engine.workers}
        engine.command_queue.put(SubmitRequest(replace(request, inputs=fed), SafeSink(request.id, recorder)))
        return recorder

    def submit(self, request_id: str, *modalities: str, seer: bool = False) -> dict[str, Recorder]:
        """To each engine with stages of the request. Returns the sinks by place."""
        request = self.request(request_id, *modalities, seer=seer)
        recorders = {place: self.submit_at(place, request) for place in dict.fromkeys(request.places.values())}
        self.settle()
        return recorders

    def tick(self) -> bool:
        moved = [each.engine.tick() for each in self.engines.values()]
        return any(moved)

    def settle(self) -> None:
        """Until nothing happens for a few rounds: memory goes back without a message."""
        quiet = 0
        while quiet < 3:
            quiet = 0 if self.tick() else quiet + 1

    def assert_nothing_left(self) -> None:
        self.settle()
        for each in self.engines.values():
            each.assert_nothing_left()


def rows(number: int, count: int = 3) -> Payload:
    """A payload with page rows and a tensor, whose values are its number."""
    pages = torch.arange(2 * 4 * 2, dtype=torch.float32).reshape(2, 4, 2) + 100 * number
    slots = np.random.default_rng(number).permutation(8)[:count]
    return Payload(Note(number=number), {"rows": PageSlice(pages, slots), "plain": torch.full((2,), float(number))})
