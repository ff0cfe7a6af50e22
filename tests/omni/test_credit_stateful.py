"""Admission, routing and credit together, under everything that users and stages do, in any order."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from omni.device import COMPLETED
from omni.device.cpu import CpuDevice
from omni.engine import Engine, EngineOutput, EngineRequest, RequestFailed, RequestFinished
from omni.engine.admission import Admission
from omni.engine.orchestrator import Orchestrator
from omni.errors import OmniError, StageError
from omni.payload import PageSlice, Payload
from omni.pipeline import Edge, Pipeline, PipelineOutput
from omni.stage import Feed, MailboxWorker, Open, Produced, StageUsage
from tests.support.fake_graph import CountingConnector, fake_stage, local_ends

# Stage workers that a test controls, and an engine of them in which every payload can be followed.

CREW = Pipeline(
    family="fake",
    stages=tuple(fake_stage(name) for name in ("speaker", "writer", "seer")),
    edges=(
        Edge(producer="seer", consumer="writer", credit=2),
        Edge(producer="writer", consumer="speaker", credit=3),
        Edge(producer="seer", consumer="speaker", credit=1),
    ),
    outputs=(PipelineOutput(modality="text", stage="writer"), PipelineOutput(modality="audio", stage="speaker")),
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
    """A request at a worker. came: serial numbers of its inputs."""

    id: str
    open_sources: set[str]
    claims: list[Claim] = field(default_factory=list)
    came: set[int] = field(default_factory=set)
    paused: bool = False


class CrewWorker(MailboxWorker[Task]):
    """Keeps inputs until the test takes them. wrong: messages that the orchestrator should not have sent."""

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
            request.came.add(message.payload.meta.serial)
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
        self.connectors = {edge.name: CountingConnector() for edge in CREW.edges}
        self.sinks: dict[str, CrewSink] = {}
        adapters = {edge.name: Splitting for edge in CREW.edges}
        ends = local_ends(CREW, self.connectors, device)
        orchestrator = Orchestrator(
            CREW, workers=self.workers, adapters=adapters, ends=ends, admission=Admission(max_active, max_waiting)
        )
        self.engine = Engine(device, orchestrator, workers=self.workers, ends=ends, memory={})
        self._serials = 0

    def submit(self, request_id: str, modalities: frozenset[str], priority: int, rude: bool) -> None:
        inputs = {name: [Payload(self.parcel(request_id))] for name in ("writer", "seer")}
        self.sinks[request_id] = CrewSink(rude)
        self.engine.submit(EngineRequest(request_id, modalities, inputs, priority=priority), self.sinks[request_id])

    def parcel(self, request_id: str, parts: int = 0) -> Parcel:
        self._serials += 1
        return Parcel(serial=self._serials, request_id=request_id, parts=parts)

    def live(self, stage: str) -> list[Task]:
        """Requests at the stage whose users have not received their end."""
        return [task for task in self.workers[stage].requests.values() if not self.sinks[task.id].ends]

    @property
    def let_in(self) -> list[str]:
        """The requests that reached the stages, in order."""
        writer = self.workers["writer"]
        return writer.opened + [message.request_id for message in writer.inbox if isinstance(message, Open)]

    def outstanding(self, edge: Edge, request_id: str) -> int:
        """What counts against the edge's credit, found out from both ends."""
        consumer = self.workers[edge.consumer]
        task = consumer.requests.get(request_id)
        fed = [m.payload.meta for m in consumer.inbox if isinstance(m, Feed) and m.request_id == request_id]
        waiting = {meta.serial for meta in fed if isinstance(meta, Parcel)} if task is not None else set()
        counting = waiting | {claim.serial for claim in (task.claims if task is not None else ()) if claim.counts}
        arrived = waiting | (task.came if task is not None else set())
        sent = [
            (ref.meta.serial, ref)
            for ref in self.connectors[edge.name].sent
            if isinstance(ref.meta, Parcel) and ref.meta.request_id == request_id
        ]
        return len([s for s, ref in sent if s in counting or not (ref.released or s in arrived)])


AT_ONCE = 2
"""Payloads that a stage makes of one request between two rounds of the engine."""
STAGES = st.sampled_from([stage.name for stage in CREW.stages])
PICKS = st.integers(0, 5)


class Pressure(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.build(1, 0)

    @initialize(max_active=st.integers(1, 3), max_waiting=st.integers(0, 3))
    def build(self, max_active: int, max_waiting: int) -> None:
        self.crew = Crew(max_active, max_waiting)
        self.limits = (max_active, max_waiting)
        self.seen = 0
        self.orders: dict[str, tuple[int, int]] = {}
        self.made: Counter[tuple[str, str]] = Counter()

    @rule(priority=st.integers(-1, 1), speaks=st.booleans(), rude=st.sampled_from([False] * 7 + [True]))
    def submit(self, priority: int, speaks: bool, rude: bool) -> None:
        name = f"r{len(self.orders)}"
        self.orders[name] = (priority, len(self.orders))
        self.crew.submit(name, frozenset({"text", "audio"} if speaks else {"text"}), priority, rude)
        self.tick()

    @rule(stage=STAGES, pick=PICKS, lends=st.booleans(), parts=st.sampled_from([0, 1, 1, 1, 2]))
    def produce(self, stage: str, pick: int, lends: bool, parts: int) -> None:
        task = self.pick(stage, pick)
        if task is not None and not task.paused and self.made[stage, task.id] < AT_ONCE:
            self.made[stage, task.id] += 1
            self.crew.workers[stage].produce(self.crew.parcel(task.id, parts), lends)

    @rule(stage=STAGES, pick=PICKS, release=st.booleans(), which=PICKS)
    def consume(self, stage: str, pick: int, release: bool, which: int) -> None:
        task = self.pick(stage, pick)
        if task is not None and task.claims:
            claim = task.claims[which % len(task.claims)]
            claim.acquire() if not release else self.let_go(task, which % len(task.claims))

    @rule(stage=STAGES, pick=PICKS, how=st.sampled_from(["done", "done", "failed", "aborted", "poisoned"]))
    def end(self, stage: str, pick: int, how: str) -> None:
        task, worker = self.pick(stage, pick), self.crew.workers[stage]
        if task is None:
            return
        if how == "done":
            worker.finish(task.id, "stop", {})
        elif how == "failed":
            worker.fail(task.id, "thinking", StageError(stage, "thinking", "no idea"))
        elif how == "poisoned":
            worker.produce(self.crew.parcel(task.id, -1), True)
        else:
            self.crew.engine.abort(task.id, OmniError("the client went away"))
            self.tick()

    @rule(pick=PICKS)
    def give_up_waiting(self, pick: int) -> None:
        waiting = [name for name in self.orders if name not in self.crew.let_in]
        if waiting:
            self.crew.engine.abort(waiting[pick % len(waiting)], OmniError("the client went away"))
            self.tick()

    @rule(flowing=st.lists(st.booleans(), min_size=len(CREW.edges), max_size=len(CREW.edges)))
    def hold_up(self, flowing: list[bool]) -> None:
        for connector, flows in zip(self.crew.connectors.values(), flowing, strict=True):
            connector.arriving = flows

    @rule()
    def tick(self) -> None:
        self.crew.engine.tick()
        self.made.clear()

    @rule()
    def settle(self) -> None:
        """Until the engine is idle: then every pause and resume has arrived."""
        while self.crew.engine.tick():
            pass
        self.made.clear()
        for stage, worker in self.crew.workers.items():
            for task in worker.requests.values():
                self.check_pause(stage, task)

    @invariant()
    def nothing_is_said_twice(self) -> None:
        assert all(not worker.wrong for worker in self.workers)
        assert all(sink.ends <= 1 for sink in self.crew.sinks.values())
        for connector in self.crew.connectors.values():
            assert len(set(map(id, connector.released))) == len(connector.released)

    @invariant()
    def no_producer_runs_further_ahead_than_its_credit_and_what_was_under_way(self) -> None:
        for edge in CREW.edges:
            for task in self.crew.live(edge.producer):
                assert self.crew.outstanding(edge, task.id) <= edge.credit - 1 + 2 * AT_ONCE

    @invariant()
    def no_more_than_so_many_are_let_in_and_the_first_in_order_are(self) -> None:
        max_active, max_waiting = self.limits
        let_in = self.crew.let_in
        inside = {name for name in let_in if not self.crew.sinks[name].ends}
        waiting = {name for name, sink in self.crew.sinks.items() if not sink.ends} - inside
        assert len(inside) <= max_active
        assert len(waiting) <= max_waiting
        if waiting:
            assert len(inside) == max_active
            first = min(self.orders[name] for name in waiting)
            assert all(self.orders[name] < first for name in let_in[self.seen :])
        self.seen = len(let_in)

    def teardown(self) -> None:
        self.finish_everything()
        assert self.crew.engine.idle
        assert all(sink.ends == 1 for sink in self.crew.sinks.values())
        for worker in self.workers:
            assert all(one.free and one.released for one in worker.made)
        for connector in self.crew.connectors.values():
            assert all(ref.released and ref.freed for ref in connector.sent)

    def finish_everything(self) -> None:
        """Consumers consume and producers that are not paused give their rest: so every request ends."""
        for connector in self.crew.connectors.values():
            connector.arriving = True
        rest = {(stage, task.id): 5 for stage in self.crew.workers for task in self.crew.live(stage)}
        for _ in range(1000):
            if self.crew.engine.idle:
                return
            for stage, worker in self.crew.workers.items():
                for task in list(worker.requests.values()):
                    while task.claims:
                        self.let_go(task, 0)
                    left = rest.setdefault((stage, task.id), 5)
                    if left and not task.paused:
                        worker.produce(self.crew.parcel(task.id, 1), True)
                        rest[stage, task.id] -= 1
                    elif not left and not task.open_sources:
                        worker.finish(task.id, "stop", {})
            self.settle()
        raise AssertionError("a request is stuck")

    def check_pause(self, stage: str, task: Task) -> None:
        edges = [e for e in CREW.edges if e.producer == stage and task.id in self.crew.workers[e.consumer].requests]
        outstanding = [(self.crew.outstanding(edge, task.id), edge.credit) for edge in edges]
        if any(count >= credit for count, credit in outstanding):
            assert task.paused
        if all(count <= credit // 2 for count, credit in outstanding):
            assert not task.paused

    @property
    def workers(self) -> list[CrewWorker]:
        return list(self.crew.workers.values())

    def pick(self, stage: str, index: int) -> Task | None:
        tasks = list(self.crew.workers[stage].requests.values())
        return tasks[index % len(tasks)] if tasks else None

    def let_go(self, task: Task, index: int) -> None:
        task.claims.pop(index).feed.release(COMPLETED)


TestPressure = Pressure.TestCase
TestPressure.settings = settings(max_examples=80, stateful_step_count=60)
