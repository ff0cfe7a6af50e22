"""An engine over fake stages: `seer` and the front end feed `writer`, whose output is text; `writer` feeds `speaker`: audio."""

from collections import deque
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import torch

from omni.connector import Connector, Ref
from omni.device import COMPLETED, Event, Stream
from omni.device.cpu import CpuDevice
from omni.engine import Engine, EngineOutput, EngineRequest, RequestFailed, RequestFinished, StageFinished, StageOutput
from omni.engine.admission import Admission
from omni.engine.orchestrator import Orchestrator
from omni.errors import OmniError
from omni.payload import PageSlice, Payload
from omni.pipeline import Edge, Output, Pipeline, Stage
from omni.pipeline.adapter import Adapter, AdapterFactory, PassThrough
from omni.sampling import SamplingParams
from omni.stage import Abort, Done, Ended, Failed, Feed, Inbound, Open, Outbound, Pause, Produced, Resume, StageWorker
from omni_local.connector import LocalConnector

# A stage worker that does nothing by itself: the test reads what it was told and says what it gives.


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
        """Releases every lease that came for the request so far, once."""
        for message in self.fed(request_id):
            message.release(after)
        self.taken = [m for m in self.taken if not (isinstance(m, Feed) and m.request_id == request_id)]


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """Meta of every payload here."""

    number: int


def host(number: int) -> Payload:
    return Payload(Note(number=number))


def lent(number: int) -> Payload:
    """A payload whose tensor belongs to its producer."""
    return Payload(Note(number=number), {"rows": PageSlice(torch.zeros(1, 4, 2), np.arange(4))})


class CountingConnector(LocalConnector):
    """Counts what is sent, released and given up."""

    def __init__(self) -> None:
        self.sent: list[Ref] = []
        self.released: list[Ref] = []
        self.closed = 0

    def send(self, payload: Payload, ready: Event, stream: Stream) -> Ref:
        self.sent.append(super().send(payload, ready, stream))
        return self.sent[-1]

    def release(self, ref: Ref, after: Event) -> None:
        self.released.append(ref)
        super().release(ref, after)

    def close(self) -> None:
        self.closed += 1


class FaultyConnector(CountingConnector):
    """Raises `error` in `where`, `"send"` or `"poll"`; without one nothing arrives."""

    def __init__(self, where: str = "poll", error: Exception | None = None) -> None:
        super().__init__()
        self._where, self._error = where, error

    def send(self, payload: Payload, ready: Event, stream: Stream) -> Ref:
        if self._where == "send" and self._error is not None:
            raise self._error
        return super().send(payload, ready, stream)

    def receive(self, ref: Ref, stream: Stream) -> "FaultyConnector":
        return self

    def poll(self) -> None:
        if self._error is not None:
            raise self._error


class Recorder:
    """A sink."""

    def __init__(self) -> None:
        self.outputs: list[EngineOutput] = []

    def __call__(self, output: EngineOutput) -> None:
        assert not self.over, "nothing comes after the last message"
        self.outputs.append(output)

    @property
    def over(self) -> bool:
        return bool(self.outputs) and isinstance(self.outputs[-1], RequestFinished | RequestFailed)

    @property
    def failure(self) -> str:
        """What the request failed with."""
        last = self.outputs[-1]
        assert isinstance(last, RequestFailed)
        return str(last.error)

    @property
    def chunks(self) -> list[tuple[str, int]]:
        """Modality and number of every chunk."""
        chunks = [output for output in self.outputs if isinstance(output, StageOutput)]
        return [(chunk.modality, chunk.meta.number) for chunk in chunks if isinstance(chunk.meta, Note)]

    @property
    def finished(self) -> list[str]:
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
        outputs=(Output(modality="text", stage="writer"), Output(modality="audio", stage="speaker")),
        frontend="none:none",
    )


PIPELINE = fake_pipeline()


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
    ) -> None:
        device = CpuDevice()
        self.seer, self.writer, self.speaker = (FakeWorker() for _ in range(3))
        self.workers = {"seer": self.seer, "writer": self.writer, "speaker": self.speaker}
        self.connectors = {edge.name: CountingConnector() for edge in pipeline.edges} | dict(connectors or {})
        made: dict[str, AdapterFactory] = {edge.name: PassThrough for edge in pipeline.edges}
        own: Mapping[str, Connector] = self.connectors
        self.orchestrator = Orchestrator(
            pipeline,
            self.workers,
            made | dict(adapters or {}),
            own,
            device.stream("transfer"),
            Admission(max_active, max_waiting),
        )
        self.engine = Engine(device, self.orchestrator, self.workers, own, {})

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
    """An adapter that makes of each payload as many inputs as `copies` says, with or without its tensors."""

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
