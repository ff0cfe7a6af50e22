"""Routes requests through the graph. Knows stages by their inbox and outbox only."""

from collections.abc import Mapping
from dataclasses import dataclass

from omni.connector import Connector
from omni.device import COMPLETED, Stream
from omni.engine.admission import Admission
from omni.engine.ranked import Rank
from omni.engine.request import EngineRequest, Outlet, RequestFailed, RequestFinished, Sink, StageFinished, StageOutput
from omni.engine.route import Credit, Route
from omni.errors import InputError, OmniError, StageError, said
from omni.pipeline import FRONTEND, Edge, Pipeline
from omni.pipeline.adapter import AdapterFactory
from omni.sampling import NO_RULES, SamplingParams
from omni.stage import Abort, Done, Ended, Failed, Feed, Open, Outbound, Produced, StageWorker


@dataclass(frozen=True, slots=True)
class Arrival:
    """A checked request, and where its outputs go."""

    request: EngineRequest
    outlet: Outlet


@dataclass(frozen=True, slots=True)
class Live:
    """A request that is at the stages. running: those it still has work in. awaited: those of them that give a wanted output.

    routes: by edge. credits: by stage, of those that produce for another.
    """

    request: EngineRequest
    outlet: Outlet
    running: set[str]
    awaited: set[str]
    routes: Mapping[str, Route]
    credits: Mapping[str, Credit]


class Orchestrator:
    """Lets requests in, opens them at the stages they need, moves payloads along edges within each edge's credit, streams outputs
    to sinks, and isolates failures."""

    def __init__(
        self,
        pipeline: Pipeline,
        workers: Mapping[str, StageWorker],
        adapters: Mapping[str, AdapterFactory],
        connectors: Mapping[str, Connector],
        transfer: Stream,
        admission: Admission[Arrival],
    ) -> None:
        self._pipeline = pipeline
        self._edges_from = {stage.name: pipeline.edges_from(stage.name) for stage in pipeline.stages}
        self._workers = workers
        self._adapters = adapters
        self._connectors = connectors
        self._transfer = transfer
        self._admission = admission
        self._live: dict[str, Live] = {}
        self._busy: dict[Route, None] = {}
        """Routes with something under way, in the order they became so: a waiting request costs nothing."""
        self._changed: dict[Credit, None] = {}
        """Credits that may have to be reported."""

    @property
    def live(self) -> int:
        """Requests under way, those that wait to be let in among them."""
        return len(self._live) + self._admission.waiting

    def submit(self, request: EngineRequest, sink: Sink) -> None:
        """Takes a request. What is wrong with it goes to the sink."""
        outlet = Outlet(request.id, sink)
        try:
            self._check(request)
            self._route_stages(request)
            arrival = Arrival(request, outlet)
            gave_way = self._admission.join(request.id, arrival, request.priority, len(self._live))
        except OmniError as error:
            outlet.end(RequestFailed(error))
            return
        for each in gave_way:
            each.candidate.thing.outlet.end(RequestFailed(each.error))
        self._admit()

    def abort(self, request_id: str, error: OmniError) -> None:
        """Gives a request up and frees what it holds everywhere. A no-op if it is over."""
        waiting = self._admission.leave(request_id)
        if waiting is not None:
            waiting.thing.outlet.end(RequestFailed(error))
        live = self._live.pop(request_id, None)
        if live is not None:
            live.outlet.end(RequestFailed(error))
            self._clear(live, str(error))

    def abort_all(self, error: OmniError) -> None:
        for waiting in self._admission.leave_all():
            waiting.thing.outlet.end(RequestFailed(error))
        for request_id in list(self._live):
            self.abort(request_id, error)

    def tick(self) -> bool:
        """Empties every outbox, delivers what has arrived, lets requests in. Returns whether anything happened."""
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
        while (candidate := self._admission.next(len(self._live))) is not None:
            admitted = True
            self._admission.leave(candidate.key)
            try:
                self._open(candidate.thing, candidate.rank)
            except OmniError as error:
                candidate.thing.outlet.end(RequestFailed(error))
        return admitted

    def _open(self, arrival: Arrival, rank: Rank) -> None:
        request = arrival.request
        active, awaited = self._route_stages(request)
        edges = [e for e in self._pipeline.edges if e.producer in active and e.consumer in active]
        credits = {
            e.producer: Credit(request.id, self._workers[e.producer], self._edges_from[e.producer], self._changed)
            for e in edges
        }
        routes = {edge.name: self._route(request, edge, credits[edge.producer]) for edge in edges}
        self._live[request.id] = Live(request, arrival.outlet, set(active), set(awaited), routes, credits)
        for name in active:
            sources = {edge.name for edge in edges if edge.consumer == name} | ({FRONTEND} & _fed(request, name))
            sampling = request.sampling.get(name, SamplingParams())
            self._workers[name].inbox.append(
                Open(
                    request.id,
                    sampling,
                    frozenset(sources),
                    rank,
                    request.cache_salt,
                    request.sample_index,
                    request.rules.get(name, NO_RULES),
                )
            )
        for name, payloads in request.inputs.items():
            if name in active:
                inbox = self._workers[name].inbox
                inbox.extend(Feed(request.id, payload, COMPLETED) for payload in payloads)
                inbox.append(Ended(request.id, FRONTEND))

    def _check(self, request: EngineRequest) -> None:
        if request.id in self._live or request.id in self._admission:
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

    def _route_stages(self, request: EngineRequest) -> tuple[frozenset[str], frozenset[str]]:
        """The stages that the request uses, and those of them that give what it wants."""
        active = self._pipeline.active(request.modalities, request.inputs)
        awaited = frozenset(o.stage for o in self._pipeline.outputs if o.modality in request.modalities)
        if not awaited or not awaited <= active:
            raise StageError("pipeline", "routing the request", "no stage that it feeds leads to a wanted output")
        return active, awaited

    def _route(self, request: EngineRequest, edge: Edge, credit: Credit) -> Route:
        try:
            adapter = self._adapters[edge.name](request.edges.get(edge.name))
        except Exception as error:
            raise StageError(edge.name, "opening its adapter", said(error)) from error
        connector, consumer = self._connectors[edge.name], self._workers[edge.consumer]
        return Route(request.id, edge, adapter, connector, consumer, self._transfer, credit)

    def _take(self, stage: str, message: Outbound) -> None:
        live = self._live.get(message.request_id)
        if live is None:
            if isinstance(message, Produced):
                message.close()
            return
        try:
            match message:
                case Produced():
                    self._forward(live, stage, message)
                case Done():
                    self._finish(live, stage, message)
                case Failed():
                    live.running.discard(stage)
                    self.abort(message.request_id, message.error)
        except OmniError as error:
            self.abort(message.request_id, error)

    def _forward(self, live: Live, stage: str, produced: Produced) -> None:
        try:
            for edge in self._edges_from[stage] if not produced.for_user else ():
                route = live.routes.get(edge.name)
                if route is not None and edge.consumer in live.running:
                    route.send(produced)
                    self._busy[route] = None
        finally:
            produced.close()
        if not produced.payload.tensors:
            for output in self._pipeline.outputs:
                if output.stage == stage and output.modality in live.request.modalities:
                    live.outlet.give(StageOutput(output.modality, produced.payload.meta))

    def _finish(self, live: Live, stage: str, done: Done) -> None:
        live.running.discard(stage)
        live.awaited.discard(stage)
        if stage in live.credits:
            live.credits[stage].close()
        for edge in self._pipeline.edges_from(stage):
            if edge.name in live.routes:
                live.routes[edge.name].end(done.reason)
                self._busy[live.routes[edge.name]] = None
        for edge in self._pipeline.edges_into(stage):
            if edge.name in live.routes:
                live.routes[edge.name].abort(f"{stage} is done")
        live.outlet.give(StageFinished(stage, done.reason, done.counts, done.held))
        if not live.awaited:
            del self._live[done.request_id]
            self._clear(live, "everything wanted has been given")
            live.outlet.end(RequestFinished())

    def _clear(self, live: Live, reason: str) -> None:
        for route in live.routes.values():
            route.abort(reason)
            self._busy.pop(route, None)
        for credit in live.credits.values():
            credit.close()
        for name in live.running:
            self._workers[name].inbox.append(Abort(live.request.id))


def _fed(request: EngineRequest, stage: str) -> set[str]:
    return {FRONTEND} if request.inputs.get(stage) else set()
