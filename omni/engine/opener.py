"""Opens a request at the stages of an engine: its routes, its credits, and the first messages to its stages."""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial

from omni.device import COMPLETED
from omni.engine.active import ActiveRequest
from omni.engine.peers import EdgeEnds, RemoteConsumer, RemoteProducer
from omni.engine.ranked import Rank
from omni.engine.request import EngineRequest, SafeSink
from omni.engine.route import Credit, InRoute, OutRoute
from omni.engine.user_route import UserRoute
from omni.errors import LostPeerError, OmniError, ReturnedError, StageError, fault_of, plugin_call, type_of
from omni.payload import AudioChunk
from omni.pipeline import FRONTEND, Edge, Pipeline
from omni.pipeline.adapter import Adapter, AdapterFactory, as_adapter
from omni.sampling import NO_RULES, SamplingParams
from omni.stage import Ended, Feed, Inbound, Lease, Open, StageWorker
from omni.utils.origin import origin

_OPENING = "opening its adapter"


class RequestOpener:
    """Opens requests for an orchestrator, which runs them."""

    def __init__(
        self,
        pipeline: Pipeline,
        workers: Mapping[str, StageWorker],
        adapters: Mapping[str, AdapterFactory],
        ends: EdgeEnds,
        place: str,
        *,
        leases: Mapping[str, dict[Lease, None]],
        changed: dict[Credit, None],
        on_busy: Callable[[InRoute], None],
        hear: Callable[[str, AudioChunk], None],
    ) -> None:
        """workers: of the stages on `place`. leases: those that each stage holds. changed: gets the credits with changes
        to report. on_busy: called when a route has something to receive. hear: as in `UserRoute`, with the request's id."""
        self._pipeline = pipeline
        self._edges_from = {stage.name: pipeline.edges_from(stage.name) for stage in pipeline.stages}
        self._user_edges = {output.modality: output.route for output in pipeline.outputs}
        self._workers = workers
        self._adapters = adapters
        self._ends = ends
        self._place = place
        self._leases = leases
        self._changed = changed
        self._on_busy = on_busy
        self._hear = hear

    def open(
        self, request: EngineRequest, sink: SafeSink, rank: Rank, stages: Collection[str], awaited: Collection[str]
    ) -> tuple[ActiveRequest, list[tuple[str, Inbound]]]:
        """The request, and the messages to its stages here. stages, awaited: of `stages_of`. Raises OmniError."""
        own = [name for name in stages if name in self._workers]
        edges = [e for e in self._pipeline.edges if e.producer in stages and e.consumer in stages]
        user_edges = self._wanted_edges(request, own)
        producers = {edge.producer for edge in (*edges, *user_edges.values())}
        credits = {name: self._credit(request.id, name) for name in own if name in producers}
        active = ActiveRequest(request, sink, running=set(own), awaited=set(awaited), outs={}, ins={}, credits=credits)
        for edge in edges:
            self._add_route(active, edge)
        for modality, edge in user_edges.items():
            active.given[modality] = self._user_route(active, modality, edge)
        asked = {edge.producer for edge in (*edges, *user_edges.values()) if edge.hidden_states}
        return active, list(self._messages(request, rank, own, edges, asked))

    def _messages(
        self, request: EngineRequest, rank: Rank, own: Collection[str], edges: Collection[Edge], asked: Collection[str]
    ) -> Iterator[tuple[str, Inbound]]:
        """asked: stages whose hidden states are wanted."""
        for name in own:
            sources = {edge.name for edge in edges if edge.consumer == name} | (
                {FRONTEND} if request.inputs.get(name) else set()
            )
            opened = Open(
                request.id,
                request.sampling.get(name, SamplingParams()),
                frozenset(sources),
                rank=rank,
                cache_salt=request.cache_salt,
                sample_index=request.sample_index,
                rules=request.rules.get(name, NO_RULES),
                hidden_states=name in asked,
            )
            yield name, opened
        for name, payloads in request.inputs.items():
            if name in own:
                yield from ((name, Feed(request.id, payload, COMPLETED)) for payload in payloads)
                yield name, Ended(request.id, FRONTEND)

    def _add_route(self, active: ActiveRequest, edge: Edge) -> None:
        """Adds the halves of the route over an edge that are here."""
        request = active.request
        producer, consumer = (request.places.get(stage, self._place) for stage in (edge.producer, edge.consumer))
        if self._place not in (producer, consumer):
            return
        try:
            here = None
            if consumer == self._place:
                receiver = self._ends.receiver(edge.name, producer)
                worker, leases = self._workers[edge.consumer], self._leases[edge.consumer]
                adapter, on_busy = self._adapter(request, edge), self._on_busy
                here = InRoute(
                    request.id,
                    edge,
                    adapter=adapter,
                    receiver=receiver,
                    consumer=worker,
                    on_busy=on_busy,
                    leases=leases,
                )
                active.ins[edge.name] = here
            if producer == self._place:
                far = here or RemoteConsumer(self._ends.link(consumer), request.id, request.number, edge.name)
                sender, credit = self._ends.sender(edge.name, consumer), active.credits[edge.producer]
                active.outs[edge.name] = OutRoute(request.id, edge, sender=sender, credit=credit, consumer=far)
            if here is not None:
                local = active.outs.get(edge.name)
                here.producer = local or RemoteProducer(self._ends.link(producer), request.id, edge.name)
        except KeyError:  # no engine is connected there
            far_stage, at = (edge.producer, producer) if consumer == self._place else (edge.consumer, consumer)
            raise LostPeerError(far_stage, "opening a route", f"no engine runs on {at}") from None

    def _wanted_edges(self, request: EngineRequest, stages: Collection[str]) -> dict[str, Edge]:
        """The ways of wanted outputs with tensors to the user, by modality."""
        edges = {name: self._user_edges[name] for name in request.modalities if name in self._user_edges}
        return {name: edge for name, edge in edges.items() if edge is not None and edge.producer in stages}

    def _credit(self, request_id: str, stage: str) -> Credit:
        to_user = [edge for edge in self._user_edges.values() if edge is not None and edge.producer == stage]
        return Credit(request_id, self._workers[stage], (*self._edges_from[stage], *to_user), self._changed)

    def _user_route(self, active: ActiveRequest, modality: str, edge: Edge) -> UserRoute:
        ends = self._ends.sender(edge.name, self._place), self._ends.receiver(edge.name, self._place)
        adapter, credit = self._adapter(active.request, edge), active.credits[edge.producer]
        return UserRoute(
            active.request.id,
            modality,
            edge,
            adapter=adapter,
            ends=ends,
            credit=credit,
            sink=active.sink,
            hear=partial(self._hear, active.request.id),
        )

    def _adapter(self, request: EngineRequest, edge: Edge) -> Adapter:
        factory = self._adapters[edge.name]
        args = request.edges.get(edge.name)
        with plugin_call(edge.name, _OPENING, factory):
            try:
                return as_adapter(factory(args), factory)
            except Exception as error:
                if isinstance(error, OmniError | ReturnedError) or origin(error):
                    raise
                # Without a line of a plugin it may be no factory at all: `"json:loads"`.
                problem = f"{edge.adapter} called with {type_of(args)} raised {fault_of(error, factory)}"
                remedy = "name a factory that takes the edge's arguments or None, and returns an Adapter"
                raise StageError(edge.name, _OPENING, f"{problem}; {remedy}") from error
