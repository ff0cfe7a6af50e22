"""The engines on other places: their connections, and their messages about routes of requests here."""

from collections.abc import Callable, Mapping

from omni.engine.active import ActiveRequest
from omni.engine.peer_messages import (
    AcquiredOut,
    EdgeClosed,
    EdgeFault,
    EndOut,
    GiveUpOut,
    Hello,
    LeaveOut,
    LostPiece,
    PieceOut,
    ToConsumer,
    ToProducer,
)
from omni.engine.peers import EngineEdges
from omni.engine.request import ConnectPeer
from omni.errors import LostPeerError, OmniError, StageError


class PeerConnections:
    """Opens and closes the ends of edges to other engines, and passes the messages of those to the routes.

    active: requests at the stages here. abort: `Orchestrator.abort`. is_coming: whether a request that is not active may still be,
    by id and number.
    """

    def __init__(
        self,
        ends: EngineEdges,
        active: Mapping[str, ActiveRequest],
        *,
        abort: Callable[[str, OmniError], None],
        is_coming: Callable[[str, int], bool],
    ) -> None:
        self._ends = ends
        self._active = active
        self._abort = abort
        self._is_coming = is_coming
        self._connecting: dict[str, ConnectPeer] = {}
        """Connections, by place, until the hello of the engine there has arrived."""
        self._connected: dict[str, ConnectPeer] = {}

    def connect(self, command: ConnectPeer) -> None:
        """Sends the hello to an engine, which may replace one that has ended."""
        self._lose(command.place)
        self._connecting[command.place] = command
        try:
            self._ends.connect(command.place, command.link)
        except OmniError as error:
            self._ends.lose(command.place)
            self._connecting.pop(command.place).on_connected(error)

    def take(self) -> bool:
        """Takes the messages of other engines, and forgets engines whose link has ended. Returns whether there were any."""
        messages = self._ends.take()
        for place, message in messages:
            match message:
                case None:
                    self._lose(place)
                case Hello():
                    self._greet(place, message)
                case EdgeFault():
                    self._ends.fail_edge(place, message)
                case EdgeClosed():
                    self._ends.free_edge(place, message)
                case AcquiredOut() | LeaveOut():
                    self._take_for_producer(message)
                case _:
                    self._take_for_consumer(place, message)
        return bool(messages)

    def take_kept(self, request_id: str) -> None:
        """Takes the messages that came before their request was active."""
        for place, message in self._ends.kept(request_id):
            self._take_for_consumer(place, message)

    def drop_kept(self) -> None:
        """Drops messages for requests that will not arrive."""
        self._ends.drop_kept(lambda request_id, number: not self._is_coming(request_id, number))

    def _greet(self, place: str, hello: Hello) -> None:
        """Opens the receivers of the other engine's senders."""
        connecting = self._connecting.pop(place)
        try:
            self._ends.greet(place, hello)
        except OmniError as error:
            connecting.on_connected(error)
        else:
            self._connected[place] = connecting
            connecting.on_connected(None)

    def _take_for_producer(self, message: ToProducer) -> None:
        active = self._active.get(message.request_id)
        out = active.outs.get(message.edge) if active is not None else None
        if out is not None:
            out.acquired() if isinstance(message, AcquiredOut) else out.leave()

    def _take_for_consumer(self, place: str, message: ToConsumer) -> None:
        active = self._active.get(message.request_id)
        if active is None and self._is_coming(message.request_id, message.number):
            self._ends.keep(place, message)
            return
        route = active.ins.get(message.edge) if active is not None else None
        if route is None:
            self._ends.drop(place, message)
            return
        try:
            match message:
                case PieceOut(_, _, _, index, piece):
                    route.piece(index, piece.value)
                case EndOut(_, _, _, payloads, reason):
                    route.end(payloads, reason)
                case GiveUpOut():
                    route.give_up()
                case LostPiece(_, _, edge, problem):
                    raise StageError(edge, "receiving a payload", problem)
        except OmniError as error:
            self._abort(message.request_id, error)

    def _lose(self, place: str) -> None:
        """Forgets the engine on a place, and fails the requests that still need a stage there. A no-op without one."""
        self._ends.lose(place)
        if place in self._connecting:
            ended = StageError("engine", "connecting", f"the engine on {place} has ended")
            self._connecting.pop(place).on_connected(ended)
        if place in self._connected:
            self._connected.pop(place).on_lost()
        for active in list(self._active.values()):
            stage = active.needs(place)
            if stage is not None:
                lost = LostPeerError(stage, "running a request", f"the link to its engine on {place} has ended")
                self._abort(active.request.id, lost)
