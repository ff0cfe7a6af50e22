"""Both ends of a check's edges, and the engine between them."""

import time
from collections import deque
from collections.abc import Callable
from functools import partial

import msgspec

from omni.connector import Connector, Reach
from omni.device import Device, Event
from omni.testing.connectors import promises
from omni.testing.connectors.ends import End
from omni.testing.connectors.messages import (
    CloseReceiver,
    Do,
    EdgeOf,
    Expect,
    OpenGate,
    OpenReceiver,
    PieceOf,
    State,
    typed,
)
from omni.testing.connectors.producer import Producer, Sent
from omni.testing.connectors.promises import Gate, calling, require
from omni.testing.connectors.values import Meta, TensorOf

_BYTES_PER_SECOND = 2**24
"""Transfer rate below which a check counts as making no progress."""
SOME_TURNS = 20


class ConnectorBench:
    """pool_bytes: of each edge. largest_bytes: of a payload."""

    def __init__(
        self,
        connector: Connector,
        devices: tuple[Device, Device],
        end: End,
        largest_bytes: int,
        numbers: Callable[[], int],
    ) -> None:
        """devices: of the producer and of the consumer."""
        self.connector = connector
        self.largest_bytes = largest_bytes
        self.pool_bytes = min(max(largest_bytes // 8, 2**16), 2**24)
        self.end = end
        self.producer = Producer(connector, devices[0])
        self.consumer_device = devices[1]
        self.local = connector.reach is Reach.PROCESS
        self._numbers = numbers
        self._held: dict[int, deque[object]] = {}
        self._discarded: set[int] = set()
        self._gates: list[Gate] = []
        self._edges: dict[int, EdgeOf] = {}

    # Edges.

    def open(self, consumer: str = "talker", pool_bytes: int | None = None) -> int:
        """Opens both ends of an edge. consumer: its stage. pool_bytes: of its pool; None: as of the others."""
        key = self._numbers()
        self._edges[key] = self.edge_to(consumer, pool_bytes)
        self.producer.open(key, self._edges[key])
        self.connect(key)
        return key

    def edge_to(self, consumer: str = "talker", pool_bytes: int | None = None) -> EdgeOf:
        """An edge to a stage, at the places that an engine gives its ends."""
        places = str(self.producer.device.torch_device), str(self.consumer_device.torch_device)
        second = places[1] if self.local or places[0] != places[1] else f"{places[1]}/2"
        return EdgeOf(f"thinker->{consumer}", pool_bytes or self.pool_bytes, places[0], second)

    def connect(self, key: int) -> None:
        """Opens the receiver of a sender."""
        address = self.producer.senders[key].address
        self.end.do(OpenReceiver(key, self._edges[key], typed(address)))

    def close(self, key: int, sender_first: bool = False) -> None:
        """Closes both ends, twice."""
        for sent in self.sent_on(key):
            sent.gone = True
        for sender in (True, False) if sender_first else (False, True):
            if sender:
                with calling("Sender.close", opens=True):
                    self.producer.senders[key].close()
                    self.producer.senders[key].close()
            else:
                self.end.do(CloseReceiver(key))
                self.idle(2)
        del self._edges[key]

    def sent_on(self, key: int) -> list[Sent]:
        return [sent for sent in self.producer.sent.values() if sent.key == key and not sent.gone]

    # Payloads.

    def meta(self, *tensors: TensorOf, text: str = "") -> Meta:
        return Meta(number=self._numbers(), tensors=tensors, text=text)

    def small(self) -> Meta:
        pages = TensorOf(name="pages", layout="pages")
        return self.meta(TensorOf(name="plain"), pages)

    def bytes_of(self, count: int) -> Meta:
        return self.meta(TensorOf(dtype="uint8", shape=(count,)))

    def rows_of(self, count: int) -> Meta:
        """A page slice of about this number of bytes, in rows of 1 KiB."""
        return self.meta(TensorOf(shape=(max(count // 1024, 1), 256), layout="pages"))

    def full(self) -> Meta:
        """A payload larger than every pool."""
        return self.bytes_of(2 * self.pool_bytes + 1)

    def gate(self) -> Gate:
        self._gates.append(Gate())
        return self._gates[-1]

    def send(self, key: int, meta: Meta, ready: Event | None = None, *, poll: bool = True) -> Sent:
        self.end.do(Expect(key, meta, poll))
        return self.producer.send(key, meta, ready)

    def fill(self, sent: Sent) -> None:
        """Writes the right values of a payload that was sent with a `ready` of the check."""
        self.producer.fill(sent)
        self.until(sent.filled.done, "work on the device ends")

    def hold(self, sent: Sent) -> None:
        """Withholds the pieces."""
        self._held.setdefault(sent.number, deque())

    def held(self, sent: Sent) -> int:
        """The number of pieces that are withheld."""
        return len(self._held[sent.number])

    def held_pieces(self, sent: Sent) -> list[object]:
        """The pieces that are kept back."""
        return list(self._held[sent.number])

    def let_go(self, sent: Sent, count: int | None = None) -> None:
        """Delivers withheld pieces: the first ones, or all of them and all later ones."""
        queue = self._held[sent.number]
        for _ in range(len(queue) if count is None else count):
            self.deliver(sent, queue.popleft())
        if count is None:
            del self._held[sent.number]

    def discard(self, sent: Sent) -> None:
        """Discards all later pieces."""
        self._discarded.add(sent.number)

    def deliver(self, sent: Sent, piece: object) -> None:
        self.end.do(PieceOf(sent.number, typed(piece), sent.number in self._discarded))

    def abort(self, sent: Sent) -> None:
        """The producer gives it up."""
        self.producer.abort(sent)

    def state(self, sent: Sent) -> State:
        return self.end.states.get(sent.number, State(sent.number))

    def do(self, action: str, *sents: Sent, gate: int | None = None) -> None:
        for sent in sents:
            self.end.do(Do(action, sent.number, gate))

    def open_gate(self, gate: int) -> None:
        """Opens the gate of a release."""
        self.end.do(OpenGate(gate))

    def new_gate(self) -> int:
        """Returns the number of a new gate, which a release waits for."""
        return self._numbers()

    # Time.

    def turn(self) -> bool:
        for gate in self._gates:
            gate.rest()
        pieces = self.producer.turn()
        for sent, piece in pieces:
            struct = self.local or isinstance(piece, msgspec.Struct)
            require(struct, "beyond Reach.PROCESS a piece is a msgspec.Struct (Ref.pieces)")
            if sent.number in self._held:
                self._held[sent.number].append(piece)
            else:
                self.deliver(sent, piece)
        return bool(self.end.turn() or pieces)

    def until(self, ask: Callable[[], bool], promise: str, nbytes: int = 0, most: float | None = None) -> None:
        """most: seconds to wait; None waits longer for large payloads."""
        patience = promises.PATIENCE_SECONDS + nbytes / _BYTES_PER_SECOND
        deadline = time.monotonic() + (patience if most is None else min(most, patience))
        while not ask():
            require(time.monotonic() < deadline, promise)
            if not self.turn():
                self.end.rest()

    def idle(self, turns: int = SOME_TURNS) -> None:
        """Both ends take some turns, after all commands so far."""
        self.until(self.end.turns(turns), "no call waits: the other end takes its turns")

    def arrive(self, *sents: Sent) -> None:
        for sent in sents:
            self._until(self._arrived, sent, "a payload that is ready arrives")

    def _arrived(self, sent: Sent) -> bool:
        state = self.state(sent)
        require(not state.lost, _of(sent, f"a payload arrives unless it is lost: Pending.poll raised {state.lost!r}"))
        return state.ready

    def read(self, *sents: Sent) -> None:
        """Reads payloads that have arrived, and compares them."""
        for sent in sents:
            before = self.state(sent).reads
            self.do("read", sent)
            self._until(partial(self._read, before), sent, "an arrived payload can be read")

    def _read(self, before: int, sent: Sent) -> bool:
        return self.state(sent).reads > before

    def take(self, *sents: Sent) -> None:
        self.arrive(*sents)
        self.read(*sents)

    def release(self, *sents: Sent) -> None:
        self.do("release", *sents)
        self.freed(*sents, promise="a released payload is sent and freed")

    def freed(self, *sents: Sent, promise: str) -> None:
        for sent in sents:
            self._until(lambda sent: sent.spoiled and (sent.finished or sent.aborted), sent, promise)

    def _until(self, ask: Callable[[Sent], bool], sent: Sent, promise: str) -> None:
        self.until(lambda: ask(sent), _of(sent, promise), _size(sent))

    def through(self, key: int, *metas: Meta) -> None:
        """Sends payloads, reads them, and releases them."""
        sents = [self.send(key, meta) for meta in metas]
        self.take(*sents)
        self.release(*sents)

    def settle(self) -> None:
        """The end of a check: all payloads have ended, so the memory of each edge is free again."""
        for key in list(self._edges):
            self.freed(*self.sent_on(key), promise="a payload that is over at both ends is freed")
            self.idle()
            self.until(
                lambda: not self.end.busy,
                "a receiver whose payloads are all over is no longer busy (Receiver.busy): give False once tick has "
                "nothing left to do",
                most=promises.IDLE_SECONDS,
            )
            self.through(key, self.full())
            self.close(key)


def _of(sent: Sent, promise: str) -> str:
    kinds = ", ".join(f"{each.dtype} {list(each.shape)} {each.layout}" for each in sent.meta.tensors[:3])
    return f"{promise} (payload {sent.number}: {kinds or 'no tensors'})"


def _size(sent: Sent) -> int:
    return sum(memory.base.nbytes for memory in sent.memories)
