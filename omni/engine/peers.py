"""The engines on other places: their ends of edges, and the messages of routes between two engines.

| message | from | to | call |
|---|---|---|---|
| `Hello` | both | both | opens the receivers of the other's senders |
| `PieceOut`, `EndOut`, `GiveUpOut` | the producer's engine | the consumer's | `RouteConsumer` |
| `AcquiredOut`, `LeaveOut` | the consumer's engine | the producer's | `RouteProducer` |

Messages of one engine arrive in order. A request reaches each engine by itself, so a message for it can come before it
does (it is kept) or after it has left (a piece is discarded). `EngineRequest.number` separates the two: requests reach
every engine in the order of their numbers.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec

from omni.connector import Connector, EdgeEnd, Receiver, Sender
from omni.engine.host import HostReceiver
from omni.errors import known
from omni.ipc import Typed
from omni.pipeline import Edge

_log = logging.getLogger(__name__)


class Hello(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The first message of each side. addresses: of its senders, by edge."""

    addresses: dict[str, Typed[msgspec.Struct]]


class PieceOut(msgspec.Struct, frozen=True, tag=True, array_like=True):
    request_id: str
    number: int
    edge: str
    index: int
    piece: Typed[msgspec.Struct]


class EndOut(msgspec.Struct, frozen=True, tag=True, array_like=True):
    request_id: str
    number: int
    edge: str
    payloads: int
    reason: str


class GiveUpOut(msgspec.Struct, frozen=True, tag=True, array_like=True):
    request_id: str
    number: int
    edge: str


class AcquiredOut(msgspec.Struct, frozen=True, tag=True, array_like=True):
    request_id: str
    edge: str


class LeaveOut(msgspec.Struct, frozen=True, tag=True, array_like=True):
    request_id: str
    edge: str


ToConsumer = PieceOut | EndOut | GiveUpOut
ToProducer = AcquiredOut | LeaveOut
PeerMessage = Hello | ToConsumer | ToProducer


class LinkClosed(Exception):
    """The other engine has ended, or the connection to it."""


class Link(Protocol):
    """The messages to and from another engine. No call waits."""

    def send(self, message: PeerMessage) -> None:
        """Adds a message; `flush` sends it. A no-op after `close`. Raises TypeError for one that cannot be sent."""
        ...

    def flush(self) -> None: ...

    @property
    def unsent(self) -> bool:
        """Whether `flush` could not send everything yet."""
        ...

    def take(self) -> Sequence[PeerMessage]:
        """The messages that have arrived, in order. Raises LinkClosed after the last one."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RemoteConsumer:
    """`RouteConsumer` in another engine."""

    link: Link
    request_id: str
    number: int
    edge: str

    def piece(self, index: int, piece: object) -> None:
        assert isinstance(piece, msgspec.Struct), "a piece of a connector beyond Reach.PROCESS is a msgspec.Struct"
        self.link.send(PieceOut(self.request_id, self.number, self.edge, index, Typed(piece)))

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


class EdgeEnds:
    """The ends of an engine's edges: senders and receivers of its own edges, and those to other engines.

    A sender is opened with the engine, since its memory counts when the device is divided. It outlives the engine of
    its receiver.
    """

    def __init__(self, place: str, edges: Sequence[OpenEdge], end: Callable[[Edge], EdgeEnd]) -> None:
        """end: of an edge, on this engine's device. Raises ConfigError if a connector cannot be opened."""
        self._place = place
        self._end = end
        self._senders: dict[tuple[str, str], Sender] = {}
        self._receivers: dict[str, Receiver] = {}
        self._arriving = {(each.edge.name, each.producer): each for each in edges if each.producer != place}
        self._peers: dict[str, _Peer] = {}
        self._closing: list[Receiver] = []
        """Receivers of peers that have ended: consumers may still read their payloads."""
        self._ticked: tuple[Receiver, ...] = ()
        try:
            for each in edges:
                if each.producer != place:
                    continue
                sender = each.connector.sender(self._end_of(each))
                self._senders[each.edge.name, each.consumer] = sender
                if each.consumer == place:
                    self._receivers[each.edge.name] = self._open_receiver(each, sender.address)
        except BaseException:
            self.close()
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
        """To the engine on a place. Raises KeyError with the place if it is not there."""
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
        """Sends the messages to other engines. One that has ended is found by `take`."""
        for peer in self._peers.values():
            peer.link.flush()

    def connect(self, place: str, link: Link) -> None:
        """Begins a connection to the engine on a place."""
        self.lose(place)
        self._peers[place] = _Peer(link)
        senders = {edge: sender for (edge, consumer), sender in self._senders.items() if consumer == place}
        addresses: dict[str, Typed[msgspec.Struct]] = {}
        for edge, sender in senders.items():
            assert isinstance(sender.address, msgspec.Struct)
            addresses[edge] = Typed(sender.address)
        link.send(Hello(addresses))

    def greet(self, place: str, hello: Hello) -> None:
        """Completes a connection. Raises OmniError if a connector cannot be opened."""
        receivers: dict[str, Receiver] = {}
        self._peers[place].receivers = receivers
        for edge, address in hello.addresses.items():
            try:
                receivers[edge] = self._open_receiver(self._arriving[edge, place], address.value)
            except Exception as error:
                raise known(edge, "opening its connector", error) from error
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
        for (_, consumer), sender in self._senders.items():
            if consumer == place:
                sender.peer_lost()
        peer.link.close()

    # Messages for requests that are not active here.

    def keep(self, place: str, message: ToConsumer) -> None:
        """Keeps a message for a request that has yet to come."""
        self._peers[place].early.setdefault(message.request_id, (message.number, []))[1].append(message)

    def drop(self, place: str, message: ToConsumer) -> None:
        """Drops a message for a request that has left."""
        peer = self._peers[place]
        if not isinstance(message, PieceOut) or peer.receivers is None:
            return
        try:
            peer.receivers[message.edge].discard(message.piece.value)
        except Exception:  # only the payload's memory is lost
            _log.exception("%s: the connector failed to discard a payload", message.edge)

    def kept(self, request_id: str) -> list[tuple[str, ToConsumer]]:
        """Takes the messages that were kept for a request, with their places."""
        taken: list[tuple[str, ToConsumer]] = []
        for place, peer in self._peers.items():
            _, messages = peer.early.pop(request_id, (0, ()))
            taken += [(place, message) for message in messages]
        return taken

    def drop_kept(self, gone: Callable[[str, int], bool]) -> None:
        """Drops what was kept for requests that never come. gone: whether that is so for an id and its number."""
        for place in self._peers:
            self._drop_early(place, gone)

    def close(self) -> None:
        """Frees all ends, also after errors, which are raised at the end. Idempotent."""
        with ExitStack() as ends:  # the last one first
            for sender in self._senders.values():
                ends.callback(sender.close)
            for receiver in self._receivers.values():
                ends.callback(receiver.close)
            ends.callback(self._close_peers)
        self._closing, self._receivers, self._senders, self._ticked = [], {}, {}, ()

    def _drop_early(self, place: str, gone: Callable[[str, int], bool]) -> None:
        early = self._peers[place].early
        for request_id in [each for each, (number, _) in early.items() if gone(each, number)]:
            for message in early.pop(request_id)[1]:
                self.drop(place, message)

    def _close_peers(self) -> None:
        with ExitStack() as ends:
            for place in list(self._peers):
                self.lose(place)
            for receiver in self._closing:
                ends.callback(receiver.close)

    def _list_receivers(self) -> None:
        others = [receiver for peer in self._peers.values() for receiver in (peer.receivers or {}).values()]
        self._ticked = (*self._receivers.values(), *others, *self._closing)

    def _close_lost(self) -> None:
        for receiver in [each for each in self._closing if not each.busy]:
            self._closing.remove(receiver)
            self._list_receivers()
            receiver.close()

    def _end_of(self, opened: OpenEdge) -> EdgeEnd:
        return replace(self._end(opened.edge), producer=opened.producer, consumer=opened.consumer)

    def _open_receiver(self, opened: OpenEdge, address: object) -> Receiver:
        end = self._end_of(opened)
        receiver = opened.connector.receiver(end, address)
        if opened.edge.memory == "device":
            return receiver
        return HostReceiver(receiver, end.device, opened.edge.name)
