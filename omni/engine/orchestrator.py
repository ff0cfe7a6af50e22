"""Routes requests through the graph. Knows stages by their inbox and outbox only."""

from collections.abc import Mapping
from dataclasses import dataclass

from omni.adapter import AdapterFactory
from omni.connector import Connector
from omni.device import COMPLETED, Stream
from omni.engine.request import EngineRequest, OutputChunk, RequestFailed, RequestFinished, Sink, StageFinished
from omni.engine.route import Route
from omni.errors import InputError, OmniError, StageError
from omni.pipeline import FRONTEND, Edge, Pipeline
from omni.sampling_params import SamplingParams
from omni.stage import Abort, Done, Ended, Failed, Feed, Open, Outbound, Produced, StageWorker


@dataclass(frozen=True, slots=True)
class _Live:
    """A request under way: the stages it still has work in, and its routes."""

    request: EngineRequest
    sink: Sink
    running: set[str]
    awaited: set[str]
    routes: Mapping[str, Route]


class Orchestrator:
    """Opens requests at the stages they need, moves payloads along edges, streams outputs to sinks, and isolates failures."""

    def __init__(
        self,
        pipeline: Pipeline,
        workers: Mapping[str, StageWorker],
        adapters: Mapping[str, AdapterFactory],
        connectors: Mapping[str, Connector],
        transfer: Stream,
    ) -> None:
        self._pipeline = pipeline
        self._workers = workers
        self._adapters = adapters
        self._connectors = connectors
        self._transfer = transfer
        self._live: dict[str, _Live] = {}
        self._busy: dict[Route, None] = {}
        """Routes with something under way, in the order they became so: a waiting request costs nothing."""

    @property
    def live(self) -> int:
        """Requests under way."""
        return len(self._live)

    def submit(self, request: EngineRequest, sink: Sink) -> None:
        """Starts a request. What is wrong with it goes to the sink."""
        try:
            live = self._open(request, sink)
        except OmniError as error:
            sink(RequestFailed(error))
            return
        self._live[request.id] = live
        for name, payloads in request.inputs.items():
            if name in live.running:
                inbox = self._workers[name].inbox
                inbox.extend(Feed(request.id, payload, COMPLETED) for payload in payloads)
                inbox.append(Ended(request.id, FRONTEND))

    def abort(self, request_id: str, error: OmniError) -> None:
        """Gives a request up and frees what it holds everywhere. A no-op if it is over."""
        live = self._live.pop(request_id, None)
        if live is not None:
            live.sink(RequestFailed(error))
            self._clear(live, str(error))

    def abort_all(self, error: OmniError) -> None:
        for request_id in list(self._live):
            self.abort(request_id, error)

    def tick(self) -> bool:
        """Empties every outbox and delivers what has arrived. Returns whether anything happened."""
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
        return moved

    def _open(self, request: EngineRequest, sink: Sink) -> _Live:
        self._check(request)
        active = self._pipeline.active(request.modalities, request.inputs)
        awaited = {o.stage for o in self._pipeline.outputs if o.modality in request.modalities}
        if not awaited or not awaited <= active:
            raise StageError("pipeline", "routing the request", "no stage that it feeds leads to a wanted output")
        edges = [e for e in self._pipeline.edges if e.producer in active and e.consumer in active]
        routes = {edge.name: self._route(request, edge) for edge in edges}
        for name in active:
            sources = {edge.name for edge in edges if edge.consumer == name} | ({FRONTEND} & _fed(request, name))
            sampling = request.sampling.get(name, SamplingParams())
            self._workers[name].inbox.append(Open(request.id, sampling, frozenset(sources)))
        return _Live(request, sink, set(active), awaited, routes)

    def _check(self, request: EngineRequest) -> None:
        if request.id in self._live:
            raise InputError("id", f"{request.id!r} is already under way", "give each request an id of its own")
        stages = {stage.name for stage in self._pipeline.stages}
        for field, names, known in (
            ("modalities", request.modalities, {output.modality for output in self._pipeline.outputs}),
            ("inputs", request.inputs, stages),
            ("sampling", request.sampling, stages),
            ("edges", request.edges, {edge.name for edge in self._pipeline.edges}),
        ):
            for name in names:
                if name not in known:
                    raise InputError(field, f"the pipeline has no {name!r}", f"use one of {', '.join(sorted(known))}")

    def _route(self, request: EngineRequest, edge: Edge) -> Route:
        try:
            adapter = self._adapters[edge.name](request.edges.get(edge.name))
        except Exception as error:
            raise StageError(edge.name, "opening its adapter", f"{type(error).__name__}: {error}") from error
        connector = self._connectors[edge.name]
        return Route(request.id, edge, adapter, connector, self._workers[edge.consumer], self._transfer)

    def _take(self, stage: str, message: Outbound) -> None:
        live = self._live.get(message.request_id)
        if live is None:
            if isinstance(message, Produced):
                message.hold.seal()
            return
        match message:
            case Produced():
                try:
                    self._forward(live, stage, message)
                except OmniError as error:
                    self.abort(message.request_id, error)
            case Done():
                self._finish(live, stage, message)
            case Failed():
                live.running.discard(stage)
                self.abort(message.request_id, message.error)

    def _forward(self, live: _Live, stage: str, produced: Produced) -> None:
        try:
            for edge in self._pipeline.edges_from(stage):
                route = live.routes.get(edge.name)
                if route is not None and edge.consumer in live.running:
                    route.send(produced)
                    self._busy[route] = None
        finally:
            produced.hold.seal()
        if not produced.payload.tensors:
            for output in self._pipeline.outputs:
                if output.stage == stage and output.modality in live.request.modalities:
                    live.sink(OutputChunk(output.modality, produced.payload.meta))

    def _finish(self, live: _Live, stage: str, done: Done) -> None:
        live.running.discard(stage)
        live.awaited.discard(stage)
        for edge in self._pipeline.edges_from(stage):
            if edge.name in live.routes:
                live.routes[edge.name].end(done.reason)
                self._busy[live.routes[edge.name]] = None
        for edge in self._pipeline.edges_into(stage):
            if edge.name in live.routes:
                live.routes[edge.name].abort(f"{stage} is done")
        live.sink(StageFinished(stage, done.reason, done.counts))
        if not live.awaited:
            del self._live[done.request_id]
            self._clear(live, "everything wanted has been given")
            live.sink(RequestFinished())

    def _clear(self, live: _Live, reason: str) -> None:
        for route in live.routes.values():
            route.abort(reason)
            self._busy.pop(route, None)
        for name in live.running:
            self._workers[name].inbox.append(Abort(live.request.id))


def _fed(request: EngineRequest, stage: str) -> set[str]:
    return {FRONTEND} if request.inputs.get(stage) else set()
