"""Two engines of fake stages in one thread, and the messages between them in memory, encoded as between two processes."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from omni.connector import Connector, EdgeEnd
from omni.device import Device
from omni.device.cpu import CpuDevice
from omni.engine import Engine, EngineRequest
from omni.engine.admission import Admission
from omni.engine.command_queue import LocalCommandQueue
from omni.engine.orchestrator import Orchestrator
from omni.engine.peer_messages import LinkClosed, PeerMessage
from omni.engine.peers import EngineEdges, OpenEdge
from omni.engine.request import AbortRequest, ConnectPeer, SafeSink, SubmitRequest
from omni.errors import OmniError
from omni.ipc import Codec
from omni.payload import PageSlice, Payload
from omni.pipeline import Edge, Pipeline
from omni.pipeline.adapter import AdapterFactory, PassThrough
from tests.support.copy_connector import CopyConnector
from tests.support.fake_graph import CountingConnector, FakeWorker, Note, Recorder, fake_pipeline, host

# Messages in memory.


class MemoryLink:
    """An end of a link. stuck: whether `flush` does not send. most: messages that one `take` returns; None for all."""

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
        self.ends = EngineEdges(place, self._edges(pipeline, at), self._end)
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

    def write(self, request_id: str, *numbers: int) -> None:
        """The writer produces `rows` of these numbers."""
        for number in numbers:
            self.worker("writer").produce(request_id, rows(number))
        self.settle()

    def finish(self, request_id: str, *stages: str) -> None:
        """The stages are done, one after the other, and have released their inputs."""
        for stage in stages:
            self.worker(stage).release(request_id)
            self.worker(stage).done(request_id)
            self.settle()

    def tick(self) -> bool:
        moved = [each.engine.tick() for each in self.engines.values()]
        return any(moved)

    def settle(self) -> None:
        """Until both are idle for a few rounds: memory goes back without a message."""
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
