"""The route of a request over an edge, in two halves that may be in two engines.

    Produced -> OutRoute -- pieces --> InRoute -> adapter -> Feed
                 Credit  <- acquired --

In one engine the halves call each other. Between two engines, `omni.engine.peers` carries the calls as messages. The
ends that they use are those of `omni.engine.guard`, which raise OmniError alone, and nothing where a payload is released,
given up or discarded at its consumer.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from omni.connector import Pending, Received, Receiver, Ref, Sender
from omni.device import COMPLETED
from omni.engine.credit import Credit
from omni.errors import OmniError, as_omni_error, plugin_call, printable_error
from omni.pipeline import Edge
from omni.pipeline.adapter import Adapter, as_inputs
from omni.stage import Ended, Feed, Inbound, Lease, Produced
from omni.utils.interrupts import is_interrupt
from omni.utils.log import safe_logger

_log = safe_logger(__name__)


class RouteConsumer(Protocol):
    """The consumer's half, as the producer's sees it."""

    def piece(self, index: int, piece: object) -> None:
        """A piece of the payload of this index."""
        ...

    def end(self, payloads: int, reason: str) -> None:
        """The producer is done, after this number of payloads."""
        ...

    def give_up(self) -> None:
        """No further piece comes, and no end."""
        ...


class RouteProducer(Protocol):
    """The producer's half, as the consumer's sees it."""

    def acquired(self) -> None:
        """One more payload is acquired or released."""
        ...

    def leave(self) -> None:
        """The consumer wants no further payload."""
        ...


@dataclass(frozen=True, slots=True)
class _Sending:
    """A payload that is not completely sent."""

    index: int
    ref: Ref


class OutRoute:
    """The producer's half: passes the payloads of a request to the connector, and their pieces to the consumer."""

    def __init__(self, request_id: str, edge: Edge, *, sender: Sender, credit: Credit, consumer: RouteConsumer) -> None:
        self.edge = edge
        self.request_id = request_id
        self._sender = sender
        self._credit = credit
        self._consumer = consumer
        self._sending: deque[_Sending] = deque()
        self._sent = 0
        self._end_reason: str | None = None
        self.closed = False
        """Whether it sends nothing more: it has sent the end, the request has ended, or the consumer has left."""

    @property
    def busy(self) -> bool:
        """Whether `tick` has something to do, now or later."""
        return bool(self._sending) or (self._end_reason is not None and not self.closed)

    def send(self, produced: Produced) -> None:
        """Sends a payload of the producer. Raises OmniError if the connector fails."""
        ref = self._sender.send(produced.payload, produced.ready)
        produced.add(ref)
        self._sending.append(_Sending(self._sent, ref))
        self._sent += 1
        self._credit.acquire(self.edge.name)

    def end(self, reason: str) -> None:
        """The producer is done. The consumer's end follows the payloads under way."""
        self._end_reason = reason

    def tick(self) -> bool:
        """Passes on the pieces that are there. Raises OmniError if a payload is lost."""
        moved = False
        for _ in range(len(self._sending)):
            moved |= self._pass_on(self._sending.popleft())
        if self._end_reason is not None and not self._sending and not self.closed:
            self.closed = moved = True
            self._consumer.end(self._sent, self._end_reason)
        return moved

    def abort(self, reason: str) -> None:
        """Gives up unsent payloads; the consumer's half gives up the rest. The edge no longer pauses its producer."""
        while self._sending:
            self._give_up(self._sending.popleft().ref, reason)
        self._credit.close_edge(self.edge.name)
        if not self.closed:
            self.closed = True
            self._consumer.give_up()

    # As the consumer's half sees it.

    def acquired(self) -> None:
        self._credit.release(self.edge.name)

    def leave(self) -> None:
        self.abort("its consumer is done")

    def _pass_on(self, sending: _Sending) -> bool:
        """Raises OmniError if the payload is lost, after both ends have given it up."""
        left: deque[object] = deque()
        try:
            left.extend(sending.ref.pieces())
            moved = bool(left)
            while left:
                self._consumer.piece(sending.index, left.popleft())
            if not sending.ref.sent:
                self._sending.append(sending)
            return moved
        except OmniError:
            self._give_up(sending.ref, "it is lost")
            self._consumer.give_up()
            self._discard(sending.index, left)
            raise

    def _discard(self, index: int, pieces: Iterable[object]) -> None:
        """Passes on pieces. The consumer's half has given up and discards them."""
        for piece in pieces:
            try:
                self._consumer.piece(index, piece)
            except OmniError as error:  # only the payload's memory is lost
                _log.error("%s: a piece cannot be discarded: %s", self.edge.name, error)

    def _give_up(self, ref: Ref, reason: str) -> None:
        """Gives up a payload. If the connector fails, only the payload's memory is lost."""
        try:
            ref.abort(reason)
        except Exception:
            _log.exception("%s: the connector failed to abort a payload of request %s", self.edge.name, self.request_id)


class FeedTaker(Protocol):
    """The interface of a route's consumer: the inbox of a stage worker, or of an output's end."""

    @property
    def inbox(self) -> deque[Inbound]: ...


class InRoute:
    """The consumer's half: takes pieces, passes complete payloads to the adapter in order, and its inputs to the stage.

    producer: set before the first piece.
    """

    producer: RouteProducer

    def __init__(
        self,
        request_id: str,
        edge: Edge,
        *,
        adapter: Adapter,
        receiver: Receiver,
        consumer: "FeedTaker",
        on_busy: "Callable[[InRoute], None]",
        leases: dict[Lease, None],
    ) -> None:
        """on_busy: called when `tick` has something to do. leases: those that the consumer holds."""
        self.edge = edge
        self.request_id = request_id
        self._adapter = adapter
        self._receiver = receiver
        self._consumer = consumer
        self._on_busy = on_busy
        self._leases = leases
        self._receiving: dict[int, Pending] = {}
        self._delivered = 0
        self._end: tuple[int, str] | None = None
        self.closed = False
        """Whether the consumer has received everything, or has left."""

    @property
    def busy(self) -> bool:
        """Whether `tick` has something to do, now or later."""
        return not self.closed and (bool(self._receiving) or self._end is not None)

    # As the producer's half sees it.

    def piece(self, index: int, piece: object) -> None:
        """Raises OmniError if the connector fails."""
        try:
            if self.closed:
                self._receiver.discard(piece)
            elif index in self._receiving:
                self._receiving[index].add(piece)
            else:
                self._receiving[index] = self._receiver.receive(piece)
                self._on_busy(self)
        except OmniError:
            self._receiver.discard(piece)
            raise

    def end(self, payloads: int, reason: str) -> None:
        self._end = payloads, reason
        self._on_busy(self)

    def give_up(self) -> None:
        """Delivered payloads stay with the consumer."""
        self.closed = True
        while self._receiving:
            _, pending = self._receiving.popitem()
            pending.abort()

    # As the orchestrator sees it.

    def tick(self) -> bool:
        """Delivers payloads that have arrived. Raises OmniError if a payload was lost or the adapter failed."""
        moved = False
        while (pending := self._receiving.get(self._delivered)) is not None:
            try:
                received = pending.poll()
            except BaseException as error:
                if is_interrupt(error):
                    raise
                raise as_omni_error(self.edge.name, "receiving a payload", error) from printable_error(error)
            if received is None:
                return moved
            self._deliver(pending, received)
            moved = True
        if self._end is not None and self._end[0] == self._delivered and not self.closed:
            self._finish(self._end[1])
            moved = True
        return moved

    def abort(self) -> None:
        """The consumer has left."""
        if not self.closed:
            self.give_up()
            self.producer.leave()

    def _deliver(self, pending: Pending, received: Received) -> None:
        # If it fails, the payload stays here, and the request's end gives it up.
        with plugin_call(self.edge.name, "adapting a payload", self._adapter.push):
            inputs = as_inputs(self._adapter.push(received.payload), self._adapter.push)
        del self._receiving[self._delivered]
        self._delivered += 1
        lease = Lease(pending, inputs, self.producer.acquired, self._leases)
        name = self.edge.name
        self._consumer.inbox.extend(Feed(self.request_id, payload, received.ready, lease, name) for payload in inputs)

    def _finish(self, reason: str) -> None:
        self.closed = True
        with plugin_call(self.edge.name, "adapting a payload", self._adapter.finish):
            inputs = as_inputs(self._adapter.finish(reason), self._adapter.finish)
        name = self.edge.name
        self._consumer.inbox.extend(Feed(self.request_id, payload, COMPLETED, source=name) for payload in inputs)
        self._consumer.inbox.append(Ended(self.request_id, name))


class Route(Protocol):
    """A half of a route, or a route to the user, as the engine's turn sees it."""

    @property
    def request_id(self) -> str: ...

    @property
    def edge(self) -> Edge: ...

    @property
    def busy(self) -> bool:
        """Whether `tick` has something to do, now or later."""
        ...

    def tick(self) -> bool:
        """Returns whether anything happened. Raises OmniError, which fails the request."""
        ...


class BusyRoutes:
    """Routes with payloads under way, the longest busy first. Waiting requests cost no time. The routes of a request that was
    aborted are not busy, and leave in their next tick.

    fail: called with a request's id and the error of one of its routes.
    """

    def __init__(self, fail: Callable[[str, OmniError], None]) -> None:
        self._fail = fail
        self._outs: dict[Route, None] = {}
        self._ins: dict[Route, None] = {}
        self._users: dict[Route, None] = {}
        self._new_outs: dict[Route, None] = {}
        self._new_ins: dict[Route, None] = {}
        """Routes with something new since the last delivery; `_new_outs` likewise."""

    def add_out(self, route: Route) -> None:
        self._new_outs[route] = None

    def add_in(self, route: Route) -> None:
        self._new_ins[route] = None

    def add_user(self, route: Route) -> None:
        self._users[route] = None

    def deliver(self) -> bool:
        """Ticks the routes with something new once. Later turns tick the routes that are still busy. Returns whether anything
        happened."""
        moved = False
        if self._new_outs:
            outs, self._new_outs = self._new_outs, {}
            moved |= self._tick(outs)
            self._outs |= outs
        if self._new_ins:
            ins, self._new_ins = self._new_ins, {}
            moved |= self._tick(ins)
            self._ins |= ins
        return moved

    def tick(self) -> bool:
        """Ticks all routes once, producers' ends first. Returns whether anything happened."""
        moved = self._tick(self._outs) | self.deliver()
        return moved | self._tick(self._ins) | self._tick(self._users)

    def _tick(self, routes: dict[Route, None]) -> bool:
        moved = False
        for route in list(routes):
            try:
                moved |= route.tick()
            except BaseException as error:  # includes exceptions that values of a plugin raise when they are read
                if is_interrupt(error):
                    raise
                self._fail(route.request_id, as_omni_error(route.edge.name, "passing on a payload", error))
            if not route.busy:
                routes.pop(route, None)
        return moved
