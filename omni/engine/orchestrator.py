"""Routes requests through the graph, by the stages' inboxes and outboxes only."""

from collections.abc import Callable, Collection, Mapping

from omni.device import COMPLETED
from omni.engine.active import ActiveRequest, check_names, stages_of
from omni.engine.admission import Admission
from omni.engine.connections import PeerConnections
from omni.engine.credit import Credit
from omni.engine.faults import ClosedStages, Mailbox, StageFault, discard_work
from omni.engine.forwarder import Forwarder
from omni.engine.peers import EngineEdges
from omni.engine.priority_queue import ServingOrder
from omni.engine.produced import AUDIO
from omni.engine.request import (
    ConnectPeer,
    EngineRequest,
    RequestFailed,
    RequestFinished,
    StageFinished,
    SubmitRequest,
)
from omni.engine.route import BusyRoutes
from omni.engine.route_opener import RouteOpener
from omni.engine.user_route import UserRoute
from omni.engine.values import checked_done
from omni.errors import InputError, OmniError
from omni.pipeline import FRONTEND, Pipeline
from omni.pipeline.adapter import AdapterFactory
from omni.sampling import NO_RULES, SamplingParams
from omni.stage import Abort, Done, Ended, Feed, Lease, Listeners, Open, StageWorker


class Orchestrator:
    """Admits requests, opens them at their stages, moves payloads along edges within each edge's credit, streams
    outputs to sinks, and isolates failures.

    The stages of a request may be in several engines. Each has an orchestrator, which runs its own stages and the
    halves of routes that end at them.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        workers: Mapping[str, StageWorker],
        adapters: Mapping[str, AdapterFactory],
        ends: EngineEdges,
        admission: Admission[SubmitRequest],
        place: str = "",
        is_held: Callable[[str], bool] = lambda request_id: False,
        listeners: Listeners | None = None,
    ) -> None:
        """workers: of the stages on this engine's place. is_held: `CommandQueue.holds`. listeners: get the length of the sound that
        is delivered."""
        self._pipeline = pipeline
        self._edges_from = {stage.name: pipeline.edges_from(stage.name) for stage in pipeline.stages}
        self._workers = workers
        self._place = place
        self.mailboxes = {name: Mailbox.of(worker) for name, worker in workers.items()}
        self._leases: dict[str, dict[Lease, None]] = {name: {} for name in workers}
        """Leases that each stage holds."""
        self._closed = ClosedStages()
        self._ends = ends
        self._admission = admission
        self._active: dict[str, ActiveRequest] = {}
        self._routes = BusyRoutes(self.abort)
        self._draining: dict[str, None] = {}
        """Requests whose stages here are done, while payloads are under way to other engines."""
        self._is_held = is_held
        self._peers = PeerConnections(ends, self._active, abort=self.abort, is_coming=self._is_coming)
        self.listeners = listeners if listeners is not None else Listeners()
        self._forwarder = Forwarder(
            pipeline,
            workers,
            self.mailboxes,
            self._active,
            self._routes,
            self.listeners,
            finish=self._finish,
            abort=self.abort,
        )
        self._sound_stage = next((each.stage for each in pipeline.outputs if each.modality == AUDIO), None)
        self._latest = 0
        """The highest number of the requests that were submitted or aborted here."""
        self._changed: dict[Credit, None] = {}
        """Credits with changes to report."""
        self._opener = RouteOpener(
            pipeline,
            workers,
            self.mailboxes,
            adapters,
            ends,
            place,
            leases=self._leases,
            changed=self._changed,
            on_busy=self._routes.add_in,
            on_finished=self._given,
            on_sound=self._forwarder.report_sound,
        )

    @property
    def unfinished(self) -> int:
        """Active requests, and those that wait for admission."""
        return len(self._active) + self._admission.waiting

    def submit(self, command: SubmitRequest) -> None:
        """Accepts a request. Its errors go to its sink."""
        request = command.request
        self._latest = max(self._latest, request.number)
        try:
            if request.id in self._active or request.id in self._admission:
                raise InputError("id", f"{request.id!r} is already under way", "give each request an id of its own")
            check_names(self._pipeline, request)
            self._stages_of(request)
            rejected = self._admission.join(request.id, command, request.priority, len(self._active))
        except OmniError as error:
            self._refuse(command, error)
            return
        for each in rejected:
            self._refuse(each.waiting.item, each.error)
        self._admit()
        self._peers.drop_kept()

    def abort(self, request_id: str, error: OmniError, number: int = 0) -> None:
        """Aborts a request and frees its resources. A no-op if it is finished."""
        self._latest = max(self._latest, number)
        waiting = self._admission.leave(request_id)
        if waiting is not None:
            self._refuse(waiting.item, error)
        active = self._active.pop(request_id, None)
        if active is not None:
            active.sink.finish(RequestFailed(error))
            self._clear(active, str(error))
        self._peers.drop_kept()

    def abort_all(self, error: OmniError) -> None:
        for waiting in self._admission.leave_all():
            self._refuse(waiting.item, error)
        for request_id in list(self._active):
            self.abort(request_id, error)

    def close_stage(self, stage: str, error: OmniError) -> None:
        """Closes a stage whose state is unknown. Fails its requests and refuses later ones that need it; all others go on. The
        caller ensures that no work of the stage runs any more."""
        self._closed.add(stage, error)
        for active in list(self._active.values()):
            if stage in active.running:
                self.abort(active.request.id, error)
        discard_work(stage, self._workers[stage], self.mailboxes[stage], self._leases[stage])
        self._ends.close_consumer(stage)

    @property
    def closed_stages(self) -> Collection[str]:
        """The stages that were closed after a fault."""
        return self._closed

    def tick(self) -> bool:
        """Empties every outbox, delivers arrived payloads, admits requests. Returns whether anything happened.

        Raises StageFault if a stage sends an invalid message, and if the state of an edge to it is unknown; `close_stage`
        comes next.
        """
        moved = self._peers.take()
        moved |= self._forwarder.empty_outboxes() | self._routes.tick()
        while self._changed:
            credit, _ = self._changed.popitem()
            moved |= credit.report()
        for request_id in list(self._draining):
            if not any(out.busy for out in self._active[request_id].outs.values()):
                self._end(self._active[request_id], "its stages here are done")
        moved |= self._admit()
        self._ends.tick()
        self._close_broken_edges()
        self._ends.flush()
        return moved

    def deliver(self) -> bool:
        """Delivers outbox messages without waiting for the next tick. Returns whether there were any. Raises as `tick`."""
        moved = self._forwarder.empty_outboxes()
        self._routes.deliver()
        return moved

    @property
    def busy(self) -> bool:
        """Whether `tick` has something to do without a request: memory to pass back, messages to send."""
        return self._ends.busy

    def counters(self, stage: str) -> Mapping[str, int]:
        """Totals of a stage besides those of its worker: `underruns` of a stage that outputs sound."""
        return {"underruns": self.listeners.underruns} if stage == self._sound_stage else {}

    def connect(self, command: ConnectPeer) -> None:
        """Connects to another engine, which may replace one that has ended."""
        self._peers.connect(command)

    def take_from_peers(self) -> bool:
        """Calls `PeerConnections.take`."""
        return self._peers.take()

    def _admit(self) -> bool:
        admitted = False
        while (waiting := self._admission.next(len(self._active))) is not None:
            admitted = True
            self._admission.leave(waiting.key)
            try:
                self._open(waiting.item, waiting.order)
            except OmniError as error:
                self._refuse(waiting.item, error)
        return admitted

    def _refuse(self, command: SubmitRequest, error: OmniError) -> None:
        """Ends a request that is not active."""
        command.sink.finish(RequestFailed(error))
        self._peers.drop_kept()

    def _open(self, command: SubmitRequest, order: ServingOrder) -> None:
        request = command.request
        stages, awaited = self._stages_of(request)
        own = [name for name in stages if name in self._own(request)]
        edges = [edge for edge in self._pipeline.edges if edge.producer in stages and edge.consumer in stages]
        user_edges = self._opener.user_edges(request, own)
        active = ActiveRequest(request, command.sink, running=set(own), awaited=set(awaited))
        self._opener.open(active, edges, user_edges)
        self._active[request.id] = active
        if request.has_listener and AUDIO in request.modalities and self._sound_stage in own:
            self.listeners.join(request.id)
        hidden_states = {edge.producer for edge in (*edges, *user_edges.values()) if edge.hidden_states}
        for name in own:
            inbox, inputs = self.mailboxes[name].inbox, request.inputs.get(name)
            sources = {edge.name for edge in edges if edge.consumer == name}
            opened = Open(
                request.id,
                request.sampling.get(name, SamplingParams()),
                frozenset(sources | {FRONTEND} if inputs else sources),
                order=order,
                cache_salt=request.cache_salt,
                sample_index=request.sample_index,
                rules=request.rules.get(name, NO_RULES),
                hidden_states=name in hidden_states,
            )
            inbox.append(opened)
            if inputs is not None:
                inbox.extend(Feed(request.id, payload, COMPLETED) for payload in inputs)
                inbox.append(Ended(request.id, FRONTEND))
        self._peers.take_kept(request.id)

    def _stages_of(self, request: EngineRequest) -> tuple[frozenset[str], frozenset[str]]:
        """As `stages_of`. Raises StageError if one of them is closed."""
        stages, awaited = stages_of(self._pipeline, request, self._own(request))
        self._closed.check(stages)
        return stages, awaited

    def _own(self, request: EngineRequest) -> Collection[str]:
        """The stages here that a request runs at. It may run at another replica of a stage, or at rank 0, elsewhere."""
        places, place = request.places, self._place
        return [name for name in self._workers if places.get(name, place) == place] if places else self._workers

    def _finish(self, active: ActiveRequest, stage: str, done: Done) -> None:
        active.running.discard(stage)
        done = checked_done(stage, done, type(self._workers[stage]))
        if stage in active.credits:
            active.credits[stage].close()
        for edge in self._edges_from[stage]:
            if edge.name in active.outs:
                active.outs[edge.name].end(done.reason)
                self._routes.add_out(active.outs[edge.name])
        for edge in self._pipeline.edges_into(stage):
            if edge.name in active.ins:
                active.ins[edge.name].abort()
        active.ending[stage] = done
        routes = active.given_by(stage)
        for route in routes:
            route.end(done.reason)
            self._routes.add_user(route)
        if not routes:
            self._report_end(active, stage)

    def _given(self, route: UserRoute) -> None:
        """A route to the user is finished. Its stage's end is reported after the last one."""
        active = self._active[route.request_id]
        if all(each.finished for each in active.given_by(route.stage)):
            self._report_end(active, route.stage)

    def _report_end(self, active: ActiveRequest, stage: str) -> None:
        done = active.ending.pop(stage)
        active.awaited.discard(stage)
        active.sink.give(StageFinished(stage, done.reason, done.counts, done.withheld))
        if not active.request.places:
            if not active.awaited:
                self._end(active, "all wanted outputs were given")
        elif not active.running and not active.ending:
            # The user's process determines when all wanted outputs were delivered, and aborts the parts that still run elsewhere.
            self._draining[active.request.id] = None

    def _end(self, active: ActiveRequest, reason: str) -> None:
        del self._active[active.request.id]
        self._clear(active, reason)
        active.sink.finish(RequestFinished())

    def _clear(self, active: ActiveRequest, reason: str) -> None:
        self._draining.pop(active.request.id, None)
        self.listeners.leave(active.request.id)
        active.abort_routes(reason)
        for name in active.running:
            if name not in self._closed:
                self.mailboxes[name].inbox.append(Abort(active.request.id))

    def _close_broken_edges(self) -> None:
        """Raises StageFault for an edge whose ends are in an unknown state: its consumer may hold memory of theirs."""
        while (fault := self._ends.take_fault()) is not None:
            edge, error = fault
            if edge.consumer in self._workers:
                raise StageFault(edge.consumer, error)
            if edge.consumer not in self._edges_from:  # the user
                raise StageFault(edge.producer, error)
            self._ends.ask_to_close(edge.name, error)
            for active in list(self._active.values()):
                if edge.name in active.outs:
                    self.abort(active.request.id, error)

    def _is_coming(self, request_id: str, number: int) -> bool:
        """Whether a request that is not active may still become so."""
        return number > self._latest or request_id in self._admission or self._is_held(request_id)
