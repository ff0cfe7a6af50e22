"""An engine over fake stages: `seer` and the front end feed `writer`, whose output is text; `writer` feeds `speaker`: audio."""

from collections import deque
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import torch

from omni.connector import Connector, EdgeEnd, Pending, Received, Ref
from omni.device import COMPLETED, Device, Event
from omni.device.cpu import CpuDevice
from omni.engine import Engine, EngineOutput, EngineRequest, RequestFailed, RequestFinished, StageFinished, StageOutput
from omni.engine.admission import Admission
from omni.engine.cut import CutStages
from omni.engine.orchestrator import Orchestrator
from omni.engine.peers import EngineEdges, OpenEdge
from omni.engine.request import SubmitRequest
from omni.errors import OmniError
from omni.payload import AudioChunk, PageSlice, Payload
from omni.pipeline import Edge, Pipeline, PipelineOutput, Stage
from omni.pipeline.adapter import Adapter, AdapterFactory, PassThrough
from omni.sampling import SamplingParams
from omni.stage import Abort, Done, Ended, Failed, Feed, Inbound, Open, Outbound, Pause, Produced, Resume, StageWorker
from omni_local.connector import LocalConnector, LocalPending, LocalReceiver, LocalRef, LocalSender

# A passive stage worker: the test reads its messages and determines its outputs.


class FakeWorker(StageWorker):
    """Keeps every message. A request counts as held from `Open` to its end here.

    answer: given, with the end, to every request as it opens: for an engine that runs in a thread of its own.
    """

    longest_prompt: int | None = None

    def __init__(self) -> None:
        self.inbox: deque[Inbound] = deque()
        self.outbox: deque[Outbound] = deque()
        self.taken: list[Inbound] = []
        self.held: set[str] = set()
        self.closed = False
        self.broken: Exception | None = None
        self.answer: Payload | None = None

    def tick(self) -> bool:
        if self.broken is not None:
            raise self.broken
        moved = bool(self.inbox)
        while self.inbox:
            message = self.inbox.popleft()
            self.taken.append(message)
            if isinstance(message, Open):
                self.held.add(message.request_id)
                if self.answer is not None:
                    self.produce(message.request_id, self.answer)
                    self.done(message.request_id)
            if isinstance(message, Abort):
                self.held.discard(message.request_id)
                self.release(message.request_id)
        return moved

    def check(self, sampling: SamplingParams, field: str) -> None: ...

    def usage(self) -> dict[str, int]:
        return {"requests": len(self.held)}

    def counters(self) -> dict[str, int]:
        return {"messages": len(self.taken)}

    def close(self) -> None:
        self.closed = True
        self.held.clear()

    def produce(self, request_id: str, payload: Payload, ready: Event = COMPLETED) -> Produced:
        produced = Produced(request_id, payload, ready)
        self.outbox.append(produced)
        return produced

    def done(self, request_id: str, reason: str = "stop") -> None:
        self.held.discard(request_id)
        self.outbox.append(Done(request_id, reason, {"tokens": 1}))

    def fail(self, request_id: str, error: OmniError) -> None:
        self.held.discard(request_id)
        self.outbox.append(Failed(request_id, error))

    def opened(self, request_id: str) -> Open:
        """How the request was opened here."""
        (message,) = [m for m in self.taken if isinstance(m, Open) and m.request_id == request_id]
        return message

    def fed(self, request_id: str) -> list[Feed]:
        return [m for m in self.taken if isinstance(m, Feed) and m.request_id == request_id]

    def numbers(self, request_id: str) -> list[int]:
        """Of the payloads that were fed."""
        return [m.payload.meta.number for m in self.fed(request_id) if isinstance(m.payload.meta, Note)]

    def ended(self, request_id: str) -> list[str]:
        """The sources that have ended for the request."""
        return [m.source for m in self.taken if isinstance(m, Ended) and m.request_id == request_id]

    def pauses(self, request_id: str) -> list[type[Pause] | type[Resume]]:
        """Pauses and resumes of the request, in order."""
        return [type(m) for m in self.taken if isinstance(m, Pause | Resume) and m.request_id == request_id]

    def aborts(self, request_id: str) -> int:
        return sum(isinstance(m, Abort) and m.request_id == request_id for m in self.taken)

    def release(self, request_id: str, after: Event = COMPLETED) -> None:
        """Releases every lease that has arrived for the request, once."""
        for message in self.fed(request_id):
            message.release(after)
        self.taken = [m for m in self.taken if not (isinstance(m, Feed) and m.request_id == request_id)]


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """Meta of every payload here."""

    number: int


def host(number: int) -> Payload:
    return Payload(Note(number=number))


class NumberedSound(AudioChunk, frozen=True, kw_only=True):
    number: int


def sound(number: int) -> Payload:
    """What `speaker` gives to users."""
    return Payload(NumberedSound(samples=np.zeros(1, np.float32), sample_rate=8000, number=number))


def lent(number: int) -> Payload:
    """A payload whose tensor belongs to its producer."""
    return Payload(Note(number=number), {"rows": PageSlice(torch.zeros(1, 4, 2), np.arange(4))})


class CountingConnector(LocalConnector):
    """Keeps the references that are sent, released, and given up at the consumer. closed: ends that were closed, in order.

    arriving: whether anything arrives. error: raised in `where`, `"send"`, `"pieces"`, `"receive"` or `"poll"`.
    """

    def __init__(self, where: str = "", error: Exception | None = None, *, arriving: bool = True) -> None:
        self.sent: list[CountingRef] = []
        self.released: list[CountingRef] = []
        self.given_up: list[object] = []
        self.closed: list[str] = []
        self.arriving = arriving
        self._where, self._error = where, error

    def sender(self, end: EdgeEnd) -> "CountingSender":
        return CountingSender(self)

    def receiver(self, end: EdgeEnd, address: object) -> "CountingReceiver":
        return CountingReceiver(self)

    def reach_point(self, where: str) -> None:
        if where == self._where and self._error is not None:
            raise self._error


class CountingSender(LocalSender):
    def __init__(self, counts: CountingConnector) -> None:
        self._counts = counts

    def send(self, payload: Payload, ready: Event) -> Ref:
        self._counts.reach_point("send")
        self._counts.sent.append(CountingRef(self._counts, payload, ready))
        return self._counts.sent[-1]

    def close(self) -> None:
        self._counts.closed.append("sender")


class CountingRef(LocalRef):
    def __init__(self, counts: CountingConnector, payload: Payload, ready: Event) -> None:
        super().__init__(payload, ready)
        self.meta = payload.meta
        self._counts = counts

    def pieces(self) -> Sequence[object]:
        self._counts.reach_point("pieces")
        return super().pieces()


class CountingReceiver(LocalReceiver):
    def __init__(self, counts: CountingConnector) -> None:
        self._counts = counts

    def receive(self, piece: object) -> Pending:
        self._counts.reach_point("receive")
        assert isinstance(piece, CountingRef)
        return CountingPending(self._counts, piece)

    def discard(self, piece: object) -> None:
        self._counts.given_up.append(piece)
        super().discard(piece)

    def close(self) -> None:
        self._counts.closed.append("receiver")


class CountingPending(LocalPending):
    def __init__(self, counts: CountingConnector, ref: CountingRef) -> None:
        super().__init__(ref)
        self._counts, self._sent = counts, ref

    def poll(self) -> Received | None:
        self._counts.reach_point("poll")
        return super().poll() if self._counts.arriving else None

    def release(self, after: Event) -> None:
        self._counts.released.append(self._sent)
        super().release(after)

    def abort(self) -> None:
        self._counts.given_up.append(self._sent)
        super().abort()


class Recorder:
    """A sink."""

    def __init__(self) -> None:
        self.outputs: list[EngineOutput] = []

    def __call__(self, output: EngineOutput) -> None:
        assert not self.finished, "nothing comes after the last message"
        self.outputs.append(output)

    @property
    def finished(self) -> bool:
        return bool(self.outputs) and isinstance(self.outputs[-1], RequestFinished | RequestFailed)

    @property
    def succeeded(self) -> bool:
        return bool(self.outputs) and isinstance(self.outputs[-1], RequestFinished)

    @property
    def failure(self) -> str:
        """The error of the request."""
        last = self.outputs[-1]
        assert isinstance(last, RequestFailed)
        return str(last.error)

    @property
    def chunks(self) -> list[tuple[str, int]]:
        """Modality and number of every chunk."""
        chunks = [output for output in self.outputs if isinstance(output, StageOutput)]
        return [(chunk.modality, chunk.meta.number) for chunk in chunks if isinstance(chunk.meta, Note | NumberedSound)]

    @property
    def finished_stages(self) -> list[str]:
        """Stages in the order they finished."""
        return [o.stage for o in self.outputs if isinstance(o, StageFinished)]


def text_request(request_id: str) -> EngineRequest:
    return EngineRequest(request_id, frozenset({"text"}), {"writer": [host(0)]})


def fake_stage(name: str) -> Stage:
    return Stage(name=name, kind="fake", model="none:none", options=Note(number=0))


def fake_pipeline(credit: int = 64) -> Pipeline:
    """credit: of the edge from writer to speaker."""
    return Pipeline(
        family="fake",
        stages=tuple(fake_stage(name) for name in ("speaker", "writer", "seer")),
        edges=(Edge(producer="seer", consumer="writer"), Edge(producer="writer", consumer="speaker", credit=credit)),
        outputs=(PipelineOutput(modality="text", stage="writer"), PipelineOutput(modality="audio", stage="speaker")),
        frontend="none:none",
    )


PIPELINE = fake_pipeline()


def local_ends(pipeline: Pipeline, connectors: Mapping[str, Connector], device: Device) -> EngineEdges:
    """Both ends of every edge, in one engine. connectors: by edge."""
    edges = [OpenEdge(edge, connectors[edge.name], "", "") for edge in pipeline.edges]
    return EngineEdges("", edges, lambda edge: EdgeEnd(edge.name, device, edge.pool_bytes))


class FakeGraph:
    """The engine, its fake workers and its connectors. adapters: by edge, where an edge does not pass through."""

    def __init__(
        self,
        adapters: Mapping[str, AdapterFactory] | None = None,
        connectors: Mapping[str, CountingConnector] | None = None,
        *,
        max_active: int = 256,
        max_waiting: int = 10_000,
        pipeline: Pipeline = PIPELINE,
        cut: CutStages | None = None,
    ) -> None:
        device = CpuDevice()
        self.seer, self.writer, self.speaker = (FakeWorker() for _ in range(3))
        self.workers = {"seer": self.seer, "writer": self.writer, "speaker": self.speaker}
        self.connectors = {edge.name: CountingConnector() for edge in pipeline.edges} | dict(connectors or {})
        made: dict[str, AdapterFactory] = {edge.name: PassThrough for edge in pipeline.edges}
        ends = local_ends(pipeline, self.connectors, device)
        admission: Admission[SubmitRequest] = Admission(max_active, max_waiting)
        self.orchestrator = Orchestrator(
            pipeline, workers=self.workers, adapters=made | dict(adapters or {}), ends=ends, admission=admission
        )
        self.engine = Engine(device, self.orchestrator, workers=self.workers, ends=ends, memory={}, cut=cut)

    def submit(
        self,
        request_id: str,
        *modalities: str,
        seer: bool = True,
        edges: Mapping[str, msgspec.Struct] | None = None,
        priority: int = 0,
        cache_salt: str = "",
    ) -> Recorder:
        recorder = Recorder()
        inputs = {"writer": [host(0)]} | ({"seer": [host(1)]} if seer else {})
        self.engine.submit(
            EngineRequest(
                request_id,
                frozenset(modalities),
                inputs,
                edges=edges or {},
                priority=priority,
                cache_salt=cache_salt,
            ),
            recorder,
        )
        self.settle()
        return recorder

    def finish(self, *request_ids: str) -> None:
        """The writer is done with these requests."""
        for request_id in request_ids:
            self.writer.done(request_id)
        self.settle()

    def settle(self) -> None:
        while self.engine.tick():
            pass


class Scripted:
    """An adapter that makes `copies` inputs of each payload, with or without its tensors."""

    def __init__(self, copies: Sequence[tuple[int, int]], at_end: int = 0) -> None:
        self._copies = list(copies)
        self._at_end = at_end
        self.reason = ""

    def push(self, payload: Payload) -> Sequence[Payload]:
        with_tensors, without = self._copies.pop(0)
        return [payload] * with_tensors + [Payload(payload.meta)] * without

    def finish(self, reason: str) -> Sequence[Payload]:
        self.reason = reason
        return [host(99)] * self._at_end


def always(adapter: Adapter) -> AdapterFactory:
    """A factory that gives out one adapter."""

    def make(args: msgspec.Struct | None) -> Adapter:
        return adapter

    return make
