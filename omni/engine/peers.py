"""The engines on other places: their ends of edges, and the routes' ends there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from omni.connector import Connector, EdgeEnd, Receiver, Sender
from omni.device import SyncPoint, may_sync
from omni.engine.guard import EdgeGuard, GuardedReceiver, GuardedSender
from omni.engine.host import HostReceiver
from omni.engine.peer_messages import (
    AcquiredOut,
    EdgeClosed,
    EdgeFault,
    EndOut,
    GiveUpOut,
    Hello,
    LeaveOut,
    Link,
    LinkClosed,
    PeerMessage,
    PieceOut,
    ToConsumer,
)
from omni.errors import OmniError, StageError, as_omni_error, error_text, printable_error
from omni.ipc import Typed
from omni.pipeline import Edge
from omni.utils.log import safe_logger
from omni.utils.origin import with_origin

_log = safe_logger(__name__)


@dataclass(frozen=True, slots=True)
class RemoteConsumer:
    """`RouteConsumer` in another engine."""

    link: Link
    request_id: str
    number: int
    edge: str

    def piece(self, index: int, piece: object) -> None:
        """Raises StageError for a piece that cannot be sent."""
        assert isinstance(piece, msgspec.Struct), "the sender's guard lets no other pass"
        try:
            self.link.send(PieceOut(self.request_id, self.number, self.edge, index, Typed(piece)))
        except Exception as error:
            problem = f"a piece cannot be sent to another process: {with_origin(error_text(error), code=type(piece))}"
            raise StageError(self.edge, "sending a payload", problem) from error

    def end(self, payloads: int, reason: str) -> None:
        self.link.send(EndOut(self.request_id, self.number, self.edge, payloads, reason))

    def give_up(self) -> None:
        self.link.send(GiveUpOut(self.request_id, self.number, self.edge))


@dataclass(frozen=True, slots=True)
class RemoteProducer:
    """`RouteProducer` in another engine."""

    link: Link
    request_id: str
    edge: str

    def acquired(self) -> None:
        self.link.send(AcquiredOut(self.request_id, self.edge))

    def leave(self) -> None:
        self.link.send(LeaveOut(self.request_id, self.edge))


@dataclass(frozen=True, slots=True)
class OpenEdge:
    """An edge with the connector of its two ends. producer, consumer: places of the ends, one of them this engine's."""

    edge: Edge
    connector: Connector
    producer: str
    consumer: str


@dataclass(slots=True)
class _Peer:
    """receivers: by edge; None until the peer has said hello."""

    link: Link
    receivers: dict[str, Receiver] | None = None
    early: dict[str, tuple[int, list[ToConsumer]]] = field(default_factory=dict)
    """Messages for requests that are not here yet, with their numbers."""


class EngineEdges:
    """The ends of an engine's edges: senders and receivers of its own edges, and those to other engines.

    A sender is opened with the engine, since its memory counts when the device is divided. It outlives the engine of
    its receiver.
    """

    def __init__(self, place: str, edges: Sequence[OpenEdge], end: Callable[[Edge], EdgeEnd]) -> None:
        """end: of an edge, on this engine's device. Raises ConfigError if a connector cannot be opened."""
        self._place = place
        self._end = end
        self._senders: dict[tuple[str, str], GuardedSender] = {}
        self._receivers: dict[str, Receiver] = {}
        self._arriving = {(each.edge.name, each.producer): each for each in edges if each.producer != place}
        self._peers: dict[str, _Peer] = {}
        self._closing: list[Receiver] = []
        """Receivers of peers that have ended: consumers may still read their payloads."""
        self._ticked: tuple[Receiver, ...] = ()
        self._guards: dict[tuple[str, str, str], EdgeGuard] = {}
        """Guards, by edge, place of the producer and place of the consumer."""
        try:
            for each in edges:
                if each.producer != place:
                    continue
                guard = self._new_guard(each)
                sender = GuardedSender.open(guard, each.connector, self._end_of(each))
                self._senders[each.edge.name, each.consumer] = sender
                if each.consumer == place:
                    self._receivers[each.edge.name] = self._open_receiver(each, guard, sender.address)
        except BaseException:
            self.close_after_error()
            raise
        self._list_receivers()

    def sender(self, edge: str, place: str) -> Sender:
        return self._senders[edge, place]

    def receiver(self, edge: str, place: str) -> Receiver:
        """The receiver of payloads from a producer on a place. Raises KeyError with the place if its engine is not there."""
        if place == self._place:
            return self._receivers[edge]
        receivers = self._peers[place].receivers
        if receivers is None or edge not in receivers:
            raise KeyError(place)
        return receivers[edge]

    def link(self, place: str) -> Link:
        """The link to the engine on a place. Raises KeyError with the place if it is not there."""
        return self._peers[place].link

    @property
    def busy(self) -> bool:
        """Whether a receiver has something to do, or a message is not sent yet."""
        return any(receiver.busy for receiver in self._ticked) or any(p.link.unsent for p in self._peers.values())

    def tick(self) -> None:
        for receiver in self._ticked:
            if receiver.busy:
                receiver.tick()
        if self._closing:
            self._close_lost()

    def flush(self) -> None:
        """Sends the messages to other engines. `take` finds the engines that have ended."""
        for peer in self._peers.values():
            peer.link.flush()

    def connect(self, place: str, link: Link) -> None:
        """Begins a connection to the engine on a place. Raises OmniError if the address of a sender cannot be sent."""
        self.lose(place)
        self._peers[place] = _Peer(link)
        addresses: dict[str, Typed[msgspec.Struct]] = {}
        for (edge, consumer), sender in self._senders.items():
            if consumer == place:
                address = sender.address
                assert isinstance(address, msgspec.Struct), "its guard lets no other pass"
                addresses[edge] = Typed(address)
        try:
            link.send(Hello(addresses))
        except Exception as error:
            types = [type(address.value) for address in addresses.values()]
            reason = with_origin(error_text(error), code=next(iter(types), None))
            problem = f"an address cannot be sent to another process: {reason}"
            raise StageError(", ".join(addresses), "connecting its ends", problem) from error

    def greet(self, place: str, hello: Hello) -> None:
        """Completes a connection. Raises OmniError if a connector cannot be opened."""
        receivers: dict[str, Receiver] = {}
        self._peers[place].receivers = receivers
        for edge, address in hello.addresses.items():
            try:
                opened = self._arriving[edge, place]
                receivers[edge] = self._open_receiver(opened, self._new_guard(opened), address.value)
            except Exception as error:
                raise as_omni_error(edge, "opening its connector", error) from printable_error(error)
        self._list_receivers()

    def take(self) -> list[tuple[str, PeerMessage | None]]:
        """Messages of the other engines, with their places. None after the last message of one that has ended."""
        taken: list[tuple[str, PeerMessage | None]] = []
        for place, peer in list(self._peers.items()):
            try:
                taken += [(place, message) for message in peer.link.take()]
            except LinkClosed:
                taken.append((place, None))
        return taken

    def lose(self, place: str) -> None:
        """Forgets the engine on a place, which has ended. Its senders wait for another one."""
        if place not in self._peers:
            return
        self._drop_early(place, lambda request_id, number: True)
        peer = self._peers.pop(place)
        self._closing += (peer.receivers or {}).values()
        self._list_receivers()
        for (edge, consumer), sender in self._senders.items():
            if consumer == place:
                sender.peer_lost()
                if sender.guard.fault is not None:  # the consumer has ended, so no stage has to be closed
                    self._free(edge, consumer)
        peer.link.close()

    # Faults of connectors.

    def take_fault(self) -> tuple[Edge, OmniError] | None:
        """An edge whose ends are in an unknown state since the last call, and the error; None if there is none."""
        for guard in self._guards.values():
            if guard.fault is not None and not guard.reported:
                guard.reported = True
                return guard.edge, guard.fault
        return None

    def ask_to_close(self, edge: str, error: OmniError) -> None:
        """Asks the engines of an edge's consumers to close them, since its sender has failed."""
        for (name, _, consumer), guard in self._guards.items():
            if name == edge and consumer in self._peers and guard.fault is not None:
                self._peers[consumer].link.send(EdgeFault(edge, str(error)))

    def fail_edge(self, place: str, fault: EdgeFault) -> None:
        """The sender of the engine on a place has failed. `take_fault` reports it."""
        guard = self._guards.get((fault.edge, place, self._place))
        if guard is not None and guard.fault is None:
            guard.fault = StageError(fault.edge, "receiving a payload", f"its sender has failed: {fault.problem}")

    def close_consumer(self, stage: str) -> None:
        """A stage is closed, and nothing that it launched still runs: the payloads sent to it are free."""
        for (name, producer, consumer), guard in self._guards.items():
            if guard.edge.consumer != stage or consumer != self._place:
                continue
            if producer == self._place:
                guard.free = True
            elif guard.fault is not None and producer in self._peers:
                self._peers[producer].link.send(EdgeClosed(name, str(guard.fault)))

    def free_edge(self, place: str, closed: EdgeClosed) -> None:
        """The consumer on a place is closed, since an end of the edge has failed. Later payloads are refused."""
        guard = self._guards.get((closed.edge, self._place, place))
        if guard is not None:
            if guard.fault is None:
                guard.fault = StageError(closed.edge, "sending a payload", f"its receiver has failed: {closed.problem}")
                guard.reported = True  # the requests that need the consumer fail there
            self._free(closed.edge, place)

    def _free(self, edge: str, place: str) -> None:
        sender = self._senders[edge, place]
        with may_sync(SyncPoint.CLOSE_STAGE):  # for copies that the sender has launched
            self._end(sender.guard.edge).device.synchronize()
        sender.guard.free = True

    # Messages for requests that are not active here.

    def keep(self, place: str, message: ToConsumer) -> None:
        """Keeps a message for a request that has yet to come."""
        self._peers[place].early.setdefault(message.request_id, (message.number, []))[1].append(message)

    def drop(self, place: str, message: ToConsumer) -> None:
        """Drops a message for a request that has left."""
        peer = self._peers[place]
        if not isinstance(message, PieceOut) or peer.receivers is None:
            return
        peer.receivers[message.edge].discard(message.piece.value)

    def kept(self, request_id: str) -> list[tuple[str, ToConsumer]]:
        """Takes the messages that were kept for a request, with their places."""
        taken: list[tuple[str, ToConsumer]] = []
        for place, peer in self._peers.items():
            _, messages = peer.early.pop(request_id, (0, ()))
            taken += [(place, message) for message in messages]
        return taken

    def drop_kept(self, gone: Callable[[str, int], bool]) -> None:
        """Drops messages that were kept for requests that never come. gone: whether that is so for an id and its number."""
        for place in self._peers:
            self._drop_early(place, gone)

    def close(self) -> None:
        """Frees all ends, also after errors: the first one is raised at the end, others are logged. Idempotent."""
        for place in list(self._peers):
            self.lose(place)
        first: Exception | None = None
        ends: list[Receiver | Sender] = [*self._closing, *self._receivers.values(), *self._senders.values()]
        for end in ends:
            try:
                end.close()
            except Exception as error:
                if first is None:
                    first = error
                else:
                    _log.error("a further end of an edge could not be closed: %s", error)
        self._closing, self._receivers, self._senders, self._ticked = [], {}, {}, ()
        if first is not None:
            raise first

    def close_after_error(self) -> None:
        """As `close`, while an error is on its way: those of the ends are logged, so that they do not replace it."""
        try:
            self.close()
        except Exception:
            _log.exception("an end of an edge could not be closed")

    def _drop_early(self, place: str, gone: Callable[[str, int], bool]) -> None:
        early = self._peers[place].early
        for request_id in [each for each, (number, _) in early.items() if gone(each, number)]:
            for message in early.pop(request_id)[1]:
                self.drop(place, message)

    def _list_receivers(self) -> None:
        others = [receiver for peer in self._peers.values() for receiver in (peer.receivers or {}).values()]
        self._ticked = (*self._receivers.values(), *others, *self._closing)

    def _close_lost(self) -> None:
        for receiver in [each for each in self._closing if not each.busy]:
            self._closing.remove(receiver)
            self._list_receivers()
            try:
                receiver.close()
            except Exception:  # the receiver's memory may be lost
                _log.exception("the receiver of an engine that has ended could not be closed")

    def _end_of(self, opened: OpenEdge) -> EdgeEnd:
        return replace(self._end(opened.edge), producer=opened.producer, consumer=opened.consumer)

    def _new_guard(self, opened: OpenEdge) -> EdgeGuard:
        guard = EdgeGuard(opened.edge, remote=opened.producer != opened.consumer)
        self._guards[opened.edge.name, opened.producer, opened.consumer] = guard
        return guard

    def _open_receiver(self, opened: OpenEdge, guard: EdgeGuard, address: object) -> Receiver:
        end = self._end_of(opened)
        receiver = GuardedReceiver.open(guard, opened.connector, end, address)
        if opened.edge.memory == "device":
            return receiver
        return HostReceiver(receiver, end.device, opened.edge.name)
