"""Opens the routes of a request at the stages of an engine."""

from collections.abc import Callable, Collection, Mapping
from functools import partial

from omni.engine.active import ActiveRequest
from omni.engine.credit import Credit
from omni.engine.faults import Mailbox
from omni.engine.peers import EngineEdges, RemoteConsumer, RemoteProducer
from omni.engine.request import EngineRequest
from omni.engine.route import InRoute, OutRoute
from omni.engine.user_route import UserRoute
from omni.errors import LostPeerError, OmniError, ReturnedError, StageError, fault_of, plugin_call, type_of
from omni.payload import AudioChunk
from omni.pipeline import Edge, Pipeline
from omni.pipeline.adapter import Adapter, AdapterFactory, as_adapter
from omni.stage import Lease, StageWorker
from omni.utils.origin import is_omni, origin

_OPENING = "opening its adapter"


class RouteOpener:
    """Opens the halves of routes that end in this engine, with the credits of their producers."""

    def __init__(
        self,
        pipeline: Pipeline,
        workers: Mapping[str, StageWorker],
        mailboxes: Mapping[str, Mailbox],
        adapters: Mapping[str, AdapterFactory],
        ends: EngineEdges,
        place: str,
        *,
        leases: Mapping[str, dict[Lease, None]],
        changed: dict[Credit, None],
        on_busy: Callable[[InRoute], None],
        on_finished: Callable[[UserRoute], None],
        on_sound: Callable[[str, AudioChunk], None],
    ) -> None:
        """workers, mailboxes: one of each for every stage on `place`. leases: the leases that each stage holds. changed: gets the
        credits with changes to report. on_busy: called when a route has something to receive. on_finished: called with a route to
        the user that has delivered everything. on_sound: as in `UserRoute`, with the request's id."""
        self._edges_from = {stage.name: pipeline.edges_from(stage.name) for stage in pipeline.stages}
        self._user_edges = {output.modality: output.route for output in pipeline.outputs}
        self._workers = workers
        self._mailboxes = mailboxes
        self._adapters = adapters
        self._ends = ends
        self._place = place
        self._leases = leases
        self._changed = changed
        self._on_busy = on_busy
        self._on_finished = on_finished
        self._on_sound = on_sound

    def open(self, active: ActiveRequest, edges: Collection[Edge], user_edges: Mapping[str, Edge]) -> None:
        """Opens the routes of a request over edges, and to the user by modality. Raises OmniError."""
        for name in {edge.producer for edge in (*edges, *user_edges.values())}:
            if name in active.running:
                active.credits[name] = self._credit(active.request.id, name)
        for edge in edges:
            self._add_route(active, edge)
        for modality, edge in user_edges.items():
            active.given[modality] = self._user_route(active, modality, edge)

    def user_edges(self, request: EngineRequest, stages: Collection[str]) -> dict[str, Edge]:
        """The edges to the user of wanted outputs with tensors of these stages, by modality."""
        edges = {name: self._user_edges[name] for name in request.modalities if name in self._user_edges}
        return {name: edge for name, edge in edges.items() if edge is not None and edge.producer in stages}

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
                mailbox, leases = self._mailboxes[edge.consumer], self._leases[edge.consumer]
                adapter, on_busy = self._adapter(request, edge), self._on_busy
                here = InRoute(
                    request.id,
                    edge,
                    adapter=adapter,
                    receiver=receiver,
                    consumer=mailbox,
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

    def _credit(self, request_id: str, stage: str) -> Credit:
        to_user = [edge for edge in self._user_edges.values() if edge is not None and edge.producer == stage]
        return Credit(request_id, self._mailboxes[stage], (*self._edges_from[stage], *to_user), self._changed)

    def _user_route(self, active: ActiveRequest, modality: str, edge: Edge) -> UserRoute:
        ends = self._ends.sender(edge.name, self._place), self._ends.receiver(edge.name, self._place)
        adapter, credit = self._adapter(active.request, edge), active.credits[edge.producer]
        made_by = None
        if is_omni(type(adapter)):  # it passes on the worker's own objects
            made_by = edge.producer, type(self._workers[edge.producer])
        return UserRoute(
            active.request.id,
            modality,
            edge,
            adapter=adapter,
            ends=ends,
            credit=credit,
            sink=active.sink,
            on_finished=self._on_finished,
            on_sound=partial(self._on_sound, active.request.id),
            made_by=made_by,
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
