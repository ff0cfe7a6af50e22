"""Routes requests through the graph, by the stages' inboxes and outboxes only."""

from collections.abc import Mapping
from dataclasses import dataclass

from omni.connector import Connector
from omni.device import COMPLETED, Stream
from omni.engine.admission import Admission
from omni.engine.ranked import Rank
from omni.engine.request import (
    EngineRequest,
    RequestFailed,
    RequestFinished,
    SafeSink,
    StageFinished,
    StageOutput,
    SubmitRequest,
)
from omni.engine.route import Credit, Route
from omni.errors import InputError, OmniError, StageError, said
from omni.pipeline import FRONTEND, Edge, Pipeline
from omni.pipeline.adapter import AdapterFactory
from omni.sampling import NO_RULES, SamplingParams
from omni.stage import Abort, Done, Ended, Failed, Feed, Open, Outbound, Produced, StageWorker


@dataclass(frozen=True, slots=True)
class ActiveRequest:
    """A request at the stages.

    running: stages that have not finished it. awaited: those of them with a wanted output.

    routes: by edge. credits: by producing stage.
    """

    request: EngineRequest
    sink: SafeSink
    running: set[str]
    awaited: set[str]
    routes: Mapping[str, Route]
    credits: Mapping[str, Credit]


class Orchestrator:
    """Admits requests, opens them at their stages, moves payloads along edges within each edge's credit, streams
    outputs to sinks, and isolates failures."""

    def __init__(
        self,
        pipeline: Pipeline,
        workers: Mapping[str, StageWorker],
        adapters: Mapping[str, AdapterFactory],
        connectors: Mapping[str, Connector],
        transfer: Stream,
        admission: Admission[SubmitRequest],
    ) -> None:
        self._pipeline = pipeline
        self._edges_from = {stage.name: pipeline.edges_from(stage.name) for stage in pipeline.stages}
        self._workers = workers
        self._adapters = adapters
        self._connectors = connectors
        self._transfer = transfer
        self._admission = admission
        self._active: dict[str, ActiveRequest] = {}
        self._busy: dict[Route, None] = {}
        """Routes with payloads under way, the longest busy first. Waiting requests cost no time."""
        self._changed: dict[Credit, None] = {}
        """Credits with changes to report."""

    @property
    def unfinished(self) -> int:
        """Active requests, and those that wait for admission."""
        return len(self._active) + self._admission.waiting

    def submit(self, command: SubmitRequest) -> None:
        """Accepts a request. Its errors go to its sink."""
        request = command.request
        try:
            self._check(request)
            self._stages_of(request)
            rejected = self._admission.join(request.id, command, request.priority, len(self._active))
        except OmniError as error:
            command.sink.finish(RequestFailed(error))
            return
        for each in rejected:
            each.waiting.item.sink.finish(RequestFailed(each.error))
        self._admit()

    def abort(self, request_id: str, error: OmniError) -> None:
        """Aborts a request and frees its resources. A no-op if it is finished."""
        waiting = self._admission.leave(request_id)
        if waiting is not None:
            waiting.item.sink.finish(RequestFailed(error))
        active = self._active.pop(request_id, None)
        if active is not None:
            active.sink.finish(RequestFailed(error))
            self._clear(active, str(error))

    def abort_all(self, error: OmniError) -> None:
        for waiting in self._admission.leave_all():
            waiting.item.sink.finish(RequestFailed(error))
        for request_id in list(self._active):
            self.abort(request_id, error)

    def tick(self) -> bool:
        """Empties every outbox, delivers arrived payloads, admits requests. Returns whether anything happened."""
        moved = False
        for name, worker in self._workers.items():
            while worker.outbox:
                self._take(name, worker.outbox.popleft())
                moved = True
        for route in list(self._busy):
            try:
                moved |= route.tick()
            except OmniError as error:
                self.abort(route.request_id, error)
            if not route.busy:
                self._busy.pop(route, None)
        while self._changed:
            credit, _ = self._changed.popitem()
            moved |= credit.report()
        return self._admit() or moved

    def _admit(self) -> bool:
        admitted = False
        while (waiting := self._admission.next(len(self._active))) is not None:
            admitted = True
            self._admission.leave(waiting.key)
            try:
                self._open(waiting.item, waiting.rank)
            except OmniError as error:
                waiting.item.sink.finish(RequestFailed(error))
        return admitted

    def _open(self, command: SubmitRequest, rank: Rank) -> None:
        request = command.request
        stages, awaited = self._stages_of(request)
        edges = [e for e in self._pipeline.edges if e.producer in stages and e.consumer in stages]
        credits = {
            e.producer: Credit(request.id, self._workers[e.producer], self._edges_from[e.producer], self._changed)
            for e in edges
        }
        routes = {edge.name: self._route(request, edge, credits[edge.producer]) for edge in edges}
        self._active[request.id] = ActiveRequest(request, command.sink, set(stages), set(awaited), routes, credits)
        for name in stages:
            sources = {edge.name for edge in edges if edge.consumer == name} | (
                {FRONTEND} if request.inputs.get(name) else set()
            )
            sampling, rules = request.sampling.get(name, SamplingParams()), request.rules.get(name, NO_RULES)
            salt, index = request.cache_salt, request.sample_index
            opened = Open(request.id, sampling, frozenset(sources), rank, salt, index, rules)
            self._workers[name].inbox.append(opened)
        for name, payloads in request.inputs.items():
            if name in stages:
                inbox = self._workers[name].inbox
                inbox.extend(Feed(request.id, payload, COMPLETED) for payload in payloads)
                inbox.append(Ended(request.id, FRONTEND))

    def _check(self, request: EngineRequest) -> None:
        if request.id in self._active or request.id in self._admission:
            raise InputError("id", f"{request.id!r} is already under way", "give each request an id of its own")
        stages = {stage.name for stage in self._pipeline.stages}
        for field, names, known in (
            ("modalities", request.modalities, {output.modality for output in self._pipeline.outputs}),
            ("inputs", request.inputs, stages),
            ("sampling", request.sampling, stages),
            ("rules", request.rules, stages),
            ("edges", request.edges, {edge.name for edge in self._pipeline.edges}),
        ):
            for name in names:
                if name not in known:
                    raise InputError(field, f"the pipeline has no {name!r}", f"use one of {', '.join(sorted(known))}")

    def _stages_of(self, request: EngineRequest) -> tuple[frozenset[str], frozenset[str]]:
        """The stages of the request, and those of them with a wanted output."""
        stages = self._pipeline.active(request.modalities, request.inputs)
        awaited = frozenset(o.stage for o in self._pipeline.outputs if o.modality in request.modalities)
        if not awaited or not awaited <= stages:
            raise StageError("pipeline", "routing the request", "no stage that it feeds leads to a wanted output")
        return stages, awaited

    def _route(self, request: EngineRequest, edge: Edge, credit: Credit) -> Route:
        try:
            adapter = self._adapters[edge.name](request.edges.get(edge.name))
        except Exception as error:
            raise StageError(edge.name, "opening its adapter", said(error)) from error
        connector, consumer = self._connectors[edge.name], self._workers[edge.consumer]
        return Route(request.id, edge, adapter, connector, consumer, self._transfer, credit)

    def _take(self, stage: str, message: Outbound) -> None:
        active = self._active.get(message.request_id)
        if active is None:
            if isinstance(message, Produced):
                message.close()
            return
        try:
            match message:
                case Produced():
                    self._forward(active, stage, message)
                case Done():
                    self._finish(active, stage, message)
                case Failed():
                    active.running.discard(stage)
                    self.abort(message.request_id, message.error)
        except OmniError as error:
            self.abort(message.request_id, error)

    def _forward(self, active: ActiveRequest, stage: str, produced: Produced) -> None:
        try:
            for edge in self._edges_from[stage] if not produced.for_user else ():
                route = active.routes.get(edge.name)
                if route is not None and edge.consumer in active.running:
                    route.send(produced)
                    self._busy[route] = None
        finally:
            produced.close()
        if not produced.payload.tensors:
            for output in self._pipeline.outputs:
                if output.stage == stage and output.modality in active.request.modalities:
                    active.sink.give(StageOutput(output.modality, produced.payload.meta))

    def _finish(self, active: ActiveRequest, stage: str, done: Done) -> None:
        active.running.discard(stage)
        active.awaited.discard(stage)
        if stage in active.credits:
            active.credits[stage].close()
        for edge in self._pipeline.edges_from(stage):
            if edge.name in active.routes:
                active.routes[edge.name].end(done.reason)
                self._busy[active.routes[edge.name]] = None
        for edge in self._pipeline.edges_into(stage):
            if edge.name in active.routes:
                active.routes[edge.name].abort(f"{stage} is done")
        active.sink.give(StageFinished(stage, done.reason, done.counts, done.held))
        if not active.awaited:
            del self._active[done.request_id]
            self._clear(active, "all wanted outputs were given")
            active.sink.finish(RequestFinished())

    def _clear(self, active: ActiveRequest, reason: str) -> None:
        for route in active.routes.values():
            route.abort(reason)
            self._busy.pop(route, None)
        for credit in active.credits.values():
            credit.close()
        for name in active.running:
            self._workers[name].inbox.append(Abort(active.request.id))
