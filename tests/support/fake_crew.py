"""Stage workers that do what a test decides, and an engine of them in which every payload can be followed."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import torch

from omni.connector import Pending, Received, Ref
from omni.device import COMPLETED, Event, Stream
from omni.device.cpu import CpuDevice
from omni.engine import Engine, EngineOutput, EngineRequest, RequestFailed, RequestFinished
from omni.engine.admission import Admission
from omni.engine.orchestrator import Orchestrator
from omni.payload import PageSlice, Payload
from omni.pipeline import Edge, Output, Pipeline
from omni.stage import Feed, MailboxWorker, Open, Produced, StageUsage
from omni_local.connector import LocalConnector
from support.fake_graph import fake_stage

CREW = Pipeline(
    family="fake",
    stages=tuple(fake_stage(name) for name in ("speaker", "writer", "seer")),
    edges=(
        Edge(producer="seer", consumer="writer", credit=2),
        Edge(producer="writer", consumer="speaker", credit=3),
        Edge(producer="seer", consumer="speaker", credit=1),
    ),
    outputs=(Output(modality="text", stage="writer"), Output(modality="audio", stage="speaker")),
    frontend="none:none",
)


class Parcel(msgspec.Struct, frozen=True, kw_only=True):
    """Meta of every payload. parts: how many inputs with its tensors an adapter makes of it; below zero it raises."""

    serial: int
    request_id: str
    parts: int = 0


class Splitting:
    """Makes of a parcel its parts, and one input without tensors."""

    def __init__(self, args: msgspec.Struct | None) -> None:
        pass

    def push(self, payload: Payload) -> Sequence[Payload]:
        assert isinstance(payload.meta, Parcel)
        if payload.meta.parts < 0:
            raise ValueError("an odd parcel")
        parts = [payload] * payload.meta.parts if payload.tensors else []
        return [*parts, Payload(payload.meta)]

    def finish(self, reason: str) -> Sequence[Payload]:
        return ()


@dataclass(eq=False)
class Claim:
    """An input with a lease. counts: neither acquired nor released."""

    serial: int
    feed: Feed
    counts: bool = True

    def acquire(self) -> None:
        self.counts = False
        self.feed.acquire()


@dataclass(eq=False)
class Task:
    """A request at a worker."""

    id: str
    open_sources: set[str]
    claims: list[Claim] = field(default_factory=list)
    paused: bool = False


class CrewWorker(MailboxWorker[Task]):
    """Keeps inputs until the test says what becomes of them. wrong: what the orchestrator should not have said."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.wrong: list[str] = []
        self.made: list[Produced] = []
        self.opened: list[str] = []

    def open(self, message: Open) -> Task:
        self.opened.append(message.request_id)
        return Task(message.request_id, set(message.inputs))

    def feed(self, request: Task, message: Feed) -> None:
        assert isinstance(message.payload.meta, Parcel)
        if message.lease is not None:
            request.claims.append(Claim(message.payload.meta.serial, message))

    def end(self, request: Task, source: str) -> None:
        if source not in request.open_sources:
            self.wrong.append(f"{source} ended twice for {request.id}")
        request.open_sources.discard(source)

    def pause(self, request: Task) -> None:
        if request.paused:
            self.wrong.append(f"{request.id} was paused twice")
        request.paused = True

    def resume(self, request: Task) -> None:
        if not request.paused:
            self.wrong.append(f"{request.id} was resumed unpaused")
        request.paused = False

    def drop(self, request: Task) -> None:
        while request.claims:
            request.claims.pop().feed.release(COMPLETED)

    def advance(self) -> bool:
        return False

    def usage(self) -> StageUsage:
        return {"requests": len(self.requests)}

    def counters(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        self.requests.clear()

    def produce(self, parcel: Parcel, lends: bool) -> None:
        tensors = {"rows": PageSlice(torch.zeros(1, 1, 1), np.zeros(1, np.int64))} if lends else {}
        produced = Produced(parcel.request_id, Payload(parcel, tensors), COMPLETED)
        self.made.append(produced)
        self.outbox.append(produced)


class CrewConnector(LocalConnector):
    """Keeps every reference with its parcel, and how often each was released. flowing: whether anything arrives."""

    def __init__(self) -> None:
        self.flowing = True
        self.sent: list[tuple[Parcel, Ref]] = []
        self.releases: list[Ref] = []
        self.lent: list[tuple[Parcel, Ref]] = []

    def send(self, payload: Payload, ready: Event, stream: Stream) -> Ref:
        assert isinstance(payload.meta, Parcel)
        ref = super().send(payload, ready, stream)
        self.sent.append((payload.meta, ref))
        if payload.tensors:
            self.lent.append((payload.meta, ref))
        return ref

    def receive(self, ref: Ref, stream: Stream) -> "CrewPending":
        return CrewPending(self, super().receive(ref, stream))

    def release(self, ref: Ref, after: Event) -> None:
        self.releases.append(ref)
        super().release(ref, after)


class CrewPending:
    def __init__(self, connector: CrewConnector, pending: Pending) -> None:
        self._connector = connector
        self._pending = pending

    def poll(self) -> Received | None:
        return self._pending.poll() if self._connector.flowing else None


class CrewSink:
    """rude: raises at every output that is not the last."""

    def __init__(self, rude: bool) -> None:
        self.ends = 0
        self._rude = rude

    def __call__(self, output: EngineOutput) -> None:
        if isinstance(output, RequestFinished | RequestFailed):
            self.ends += 1
        elif self._rude:
            raise RuntimeError("the pipe is broken")


class Crew:
    """seer -> writer -> speaker, and seer -> speaker. Every request uses the seer and the writer."""

    def __init__(self, max_active: int, max_waiting: int) -> None:
        device = CpuDevice()
        self.workers = {stage.name: CrewWorker(stage.name) for stage in CREW.stages}
        self.connectors = {edge.name: CrewConnector() for edge in CREW.edges}
        self.sinks: dict[str, CrewSink] = {}
        orchestrator = Orchestrator(
            CREW,
            self.workers,
            {edge.name: Splitting for edge in CREW.edges},
            self.connectors,
            device.stream("transfer"),
            Admission(max_active, max_waiting),
        )
        self.engine = Engine(device, orchestrator, self.workers, self.connectors, {})
        self._serials = 0

    def submit(self, request_id: str, modalities: frozenset[str], priority: int, rude: bool) -> None:
        inputs = {name: [Payload(self.parcel(request_id))] for name in ("writer", "seer")}
        self.sinks[request_id] = CrewSink(rude)
        self.engine.submit(EngineRequest(request_id, modalities, inputs, priority=priority), self.sinks[request_id])

    def parcel(self, request_id: str, parts: int = 0) -> Parcel:
        self._serials += 1
        return Parcel(serial=self._serials, request_id=request_id, parts=parts)

    def live(self, stage: str) -> list[Task]:
        """Requests at the stage whose users have not been told of their end."""
        return [task for task in self.workers[stage].requests.values() if not self.sinks[task.id].ends]

    @property
    def let_in(self) -> list[str]:
        """The requests that came to the stages, in order."""
        writer = self.workers["writer"]
        return writer.opened + [message.request_id for message in writer.inbox if isinstance(message, Open)]

    def outstanding(self, edge: Edge, request_id: str) -> int:
        """What counts against the edge's credit, found out from both ends."""
        left = {
            p.serial for p, ref in self.connectors[edge.name].lent if p.request_id == request_id and not ref.released
        }
        task = self.workers[edge.consumer].requests.get(request_id)
        claims = task.claims if task is not None else []
        counting = {claim.serial for claim in claims if claim.counts}
        delivered = {claim.serial for claim in claims}
        return len([serial for serial in left if serial in counting or serial not in delivered])
