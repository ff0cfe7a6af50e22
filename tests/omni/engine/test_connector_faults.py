"""A connector that fails harms the requests of its edge, by name, and no others: in one engine, and between two."""

from contextlib import ExitStack
from unittest.mock import patch

import msgspec
import pytest
import torch

from omni.connector import EdgeEnd
from omni.device.cpu import CpuDevice
from omni.engine.peer_messages import LostPiece
from omni.engine.peers import EngineEdges, OpenEdge
from omni.errors import OmniError, PluginError
from omni.payload import Payload
from omni.pipeline import Edge
from tests.support.copy_connector import CopyPending, CopyReceiver, CopyRef, CopySender
from tests.support.fake_graph import (
    CountingConnector,
    CountingReceiver,
    CountingRef,
    CountingSender,
    FakeGraph,
    host,
    lent,
)
from tests.support.two_engines import HERE, THERE, TwoEngines, rows

pytestmark = pytest.mark.plants_faults

EDGE = "writer->speaker"
BOTH = ("text", "audio")


class Exits(BaseException):
    """As a library's panic."""


def fail(*args: object) -> None:
    raise Exits("an unknown state")


def odd(value: object) -> property:
    """A property that raises a `BaseException`, or returns a value."""
    return property(lambda owner: value if not isinstance(value, BaseException) else fail())


def ignore(owner: object, value: object) -> None:
    """A property's setter."""


def named(doing: str) -> str:
    return f"stage '{EDGE}' failed while {doing}: Exits: an unknown state ({__file__}:"


class BusyReceiver(CountingReceiver):
    busy = True


class BusyConnector(CountingConnector):
    """Its receiver is ticked in every turn."""

    def receiver(self, end: EdgeEnd, address: object) -> CountingReceiver:
        return BusyReceiver(self)


UNKNOWN = [
    (BusyReceiver, "tick", fail, "ticking its receiver"),
    (BusyReceiver, "busy", odd(Exits()), "asking whether its receiver is busy"),
    (CountingRef, "released", odd(Exits()), "asking whether a payload is released"),
    (CountingRef, "freed", odd(Exits()), "asking whether a payload is free"),
]


@pytest.mark.parametrize(("owner", "method", "fault", "doing"), UNKNOWN)
def test_ends_in_an_unknown_state_close_the_consumer(owner: type, method: str, fault: object, doing: str) -> None:
    graph = FakeGraph(connectors={EDGE: BusyConnector()})
    both, text = graph.submit("both", *BOTH), graph.submit("text", "text")
    held = [graph.writer.produce("both", lent(number)) for number in range(3)]
    graph.settle()
    assert not any(produced.free for produced in held)
    with patch.object(owner, method, fault, create=True):
        _ = [(produced.released, produced.free) for produced in held]
        graph.settle()
        assert both.failure.startswith(named(doing))
        assert all(produced.free for produced in held), "their producer gets its memory back"
        assert graph.speaker.closed
        late = graph.submit("late", *BOTH)
        assert late.failure.startswith("stage 'speaker' failed while running: it is closed after a fault")
        assert named(doing) in late.failure
        graph.writer.produce("text", host(1))
        graph.finish("text")
        assert text.succeeded
        assert graph.engine.idle
    graph.engine.close()


TRAVEL = [
    (CountingSender, "send", fail, "sending a payload"),
    (CountingRef, "pieces", fail, "sending a payload"),
    (CountingReceiver, "receive", fail, "receiving a payload"),
]


@pytest.mark.parametrize(("owner", "method", "fault", "doing"), TRAVEL)
def test_a_payload_that_cannot_travel_fails_its_request_alone(
    owner: type, method: str, fault: object, doing: str
) -> None:
    graph = FakeGraph()
    bad, good = graph.submit("bad", *BOTH), graph.submit("good", *BOTH)
    with patch.object(owner, method, fault):
        produced = graph.writer.produce("bad", lent(1))
        graph.settle()
    assert bad.failure.startswith(named(doing))
    assert produced.free
    graph.writer.produce("good", lent(1))
    graph.settle()
    assert graph.speaker.numbers("good") == [1]
    assert not good.finished


def test_a_payload_that_is_not_given_up_closes_the_consumer() -> None:
    graph = FakeGraph()
    recorder, text = graph.submit("r", *BOTH), graph.submit("text", "text")
    # The flags of a class are checked once, at its first payload: a fault there is one of `send`, and gives up no payload.
    graph.writer.produce("r", lent(0))
    graph.settle()
    with patch.object(CountingRef, "sent", property(fail, ignore), create=True):
        produced = graph.writer.produce("r", lent(1))
        graph.settle()
    assert recorder.failure.startswith(named("sending a payload"))
    assert produced.free
    assert graph.speaker.closed
    graph.finish("text")
    assert text.succeeded


LETTING_GO = [
    ("release", {"CountingPending.release"}, "releasing a payload"),
    ("abort", {"CountingPending.abort"}, "giving up a payload"),
    ("discard", {"CountingReceiver.receive", "CountingReceiver.discard"}, "discarding a payload"),
]


@pytest.mark.parametrize(("method", "failing", "doing"), LETTING_GO)
def test_a_consumer_that_cannot_release_is_closed(method: str, failing: set[str], doing: str) -> None:
    """Its producer gets the memory back: other requests would wait for it."""
    graph = FakeGraph()
    recorder, text = graph.submit("r", *BOTH), graph.submit("text", "text")
    graph.connectors[EDGE].arriving = method != "abort"
    with ExitStack() as faults:
        if method != "discard":
            produced = graph.writer.produce("r", lent(1))
            graph.settle()
        for name in failing:
            faults.enter_context(patch(f"tests.support.fake_graph.{name}", fail))
        if method == "release":
            graph.speaker.release("r")
        elif method == "abort":
            graph.engine.abort("r", OmniError("the client went away"))
        else:
            produced = graph.writer.produce("r", lent(1))
        graph.settle()
        assert recorder.finished
        assert graph.speaker.closed
        assert produced.free
        late = graph.submit("late", *BOTH)
        assert named(doing) in late.failure
        graph.finish("text")
        assert text.succeeded
        assert graph.engine.idle


def test_a_closed_stage_keeps_its_first_fault() -> None:
    """Payloads that it held are released afterwards, and the connector may fail then."""
    graph = FakeGraph()
    graph.submit("r", *BOTH)
    produced = graph.writer.produce("r", lent(1))
    graph.settle()
    with patch("tests.support.fake_graph.CountingPending.release", fail):
        graph.speaker.broken = RuntimeError("the first fault")
        graph.settle()
    assert produced.free
    assert "it is closed after a fault, RuntimeError: the first fault" in graph.submit("late", *BOTH).failure


def test_the_pieces_of_a_payload_that_is_lost_are_given_back() -> None:
    """The ones behind a piece that the receiver refuses, too."""
    graph = FakeGraph()
    graph.submit("r", *BOTH)

    def twice(ref: CountingRef) -> list[object]:
        ref.sent = True
        return [ref, "odd", ref]

    with patch.object(CountingRef, "pieces", twice):
        produced = graph.writer.produce("r", lent(1))
        graph.settle()
    given_up = graph.connectors[EDGE].given_up
    assert given_up.count("odd") == 1
    assert len(given_up) == 3
    assert produced.free


# Opening and closing.


def open_ends(connector: CountingConnector, consumer: str = "cpu") -> EngineEdges:
    device = CpuDevice()
    edges = [
        OpenEdge(Edge(producer=producer, consumer="speaker"), connector, "cpu", consumer)
        for producer in ("writer", "seer")
    ]
    return EngineEdges("cpu", edges, lambda edge: EdgeEnd(edge.name, device, edge.pool_bytes))


def test_an_end_that_is_not_opened_keeps_no_other_open(caplog: pytest.LogCaptureFixture) -> None:
    connector = CountingConnector()
    opened: list[str] = []

    def second(counts: CountingConnector, end: EdgeEnd, address: object) -> CountingReceiver | None:
        opened.append(end.edge)
        return CountingReceiver(counts) if len(opened) == 1 else None

    with (
        patch.object(CountingConnector, "receiver", second),
        patch.object(CountingReceiver, "close", fail),
        pytest.raises(
            PluginError, match=r"edges\.seer-speaker\.connector: .*receiver returned None: return a Receiver"
        ),
    ):
        open_ends(connector)
    assert connector.closed == ["sender", "sender"]
    assert "closing the receiver of edge 'writer->speaker' failed: Exits" in caplog.text


def test_an_address_that_cannot_be_sent_is_refused_when_it_opens() -> None:
    with pytest.raises(PluginError, match="address is None, which the consumer's process cannot receive"):
        open_ends(CountingConnector(), "cpu/2")


@pytest.mark.parametrize("owner", [CountingSender, CountingReceiver])
def test_an_end_that_cannot_be_closed_keeps_no_other_open(owner: type) -> None:
    graph = FakeGraph()
    with patch.object(owner, "close", fail), pytest.raises(PluginError, match=r"edges\..*closing the .*Exits"):
        graph.engine.close()
    closed = [end for connector in graph.connectors.values() for end in connector.closed]
    assert sorted(closed) == ["receiver", "receiver"] if owner is CountingSender else ["sender", "sender"]
    assert all(worker.closed for worker in graph.workers.values())


# Between two engines.


@pytest.fixture
def two() -> TwoEngines:
    return TwoEngines()


def begin(two: TwoEngines, request_id: str, *numbers: int) -> None:
    for number in numbers:
        two.worker("writer").produce(request_id, rows(number))
    two.settle()


def write_text(two: TwoEngines, request_id: str) -> bool:
    """Whether a request is answered that does not need the edge."""
    recorder = two.submit(request_id, "text")[HERE]
    two.worker("writer").produce(request_id, host(1))
    two.worker("writer").done(request_id)
    two.settle()
    return "text" in [modality for modality, _ in recorder.chunks]


FAR = [
    (CopyReceiver, "tick", fail, "ticking its receiver", THERE),
    (CopyReceiver, "busy", odd(Exits()), "asking whether its receiver is busy", THERE),
    (CopyPending, "release", fail, "releasing a payload", THERE),
    (CopyRef, "released", property(fail, ignore), "asking whether a payload is released", HERE),
]


@pytest.mark.parametrize(("owner", "method", "fault", "doing", "place"), FAR)
def test_a_fault_at_either_end_closes_the_consumer_of_another_engine(
    two: TwoEngines, owner: type, method: str, fault: object, doing: str, place: str
) -> None:
    sinks = two.submit("r", *BOTH)
    produced = two.worker("writer").produce("r", rows(1))
    two.settle()
    (ref,) = two.here.connector.senders[0].refs
    ref.freed = False  # the receiver reports when it is free
    with patch.object(owner, method, fault, create=True):
        _ = produced.released
        if method == "release":
            two.worker("speaker").release("r")
        two.settle()
        assert sinks[place].failure.startswith(named(doing))
        assert doing in sinks[THERE].failure
        assert two.worker("speaker").closed
        late = two.submit("late", *BOTH)
        assert "is closed after a fault" in late[THERE].failure
        late_payload = two.worker("writer").produce("late", rows(2))
        two.settle()
        assert late[HERE].failure.startswith(f"stage '{EDGE}' failed while sending a payload: its connector has failed")
        assert produced.free
        assert late_payload.free
        assert write_text(two, "text")
        two.here.abort("r", OmniError("its client has heard of it"), two.number("r"))
        two.settle()
        assert two.here.engine.idle


def test_a_sender_that_cannot_lose_its_peer_harms_only_its_edge(two: TwoEngines) -> None:
    sinks = two.submit("r", *BOTH)
    begin(two, "r", 1)
    with patch.object(CopySender, "peer_lost", fail):
        two.end(THERE)
        two.settle()
    assert sinks[HERE].finished
    assert write_text(two, "text")
    two.connect()
    late = two.submit("late", *BOTH)
    begin(two, "late", 2)
    assert "its connector has failed, Exits: an unknown state" in late[HERE].failure
    assert write_text(two, "more")


class Unsendable(msgspec.Struct, frozen=True):
    value: object


@pytest.mark.parametrize(
    ("piece", "problem"),
    [
        (Unsendable(object()), "a piece cannot be sent to another process: TypeError"),
        (Unsendable(2**70), "a piece cannot be sent to another process: "),
        ("text", "pieces returned a str in its sequence: return msgspec.Structs"),
    ],
)
def test_a_piece_that_cannot_be_sent_fails_its_request_alone(two: TwoEngines, piece: object, problem: str) -> None:
    bad, good = two.submit("bad", *BOTH), two.submit("good", *BOTH)
    with patch.object(CopyRef, "pieces", lambda ref: [piece]):
        produced = two.worker("writer").produce("bad", rows(1))
        two.settle()
    assert bad[HERE].failure.startswith(f"stage '{EDGE}' failed while sending a payload: {problem}")
    assert __file__ in bad[HERE].failure
    assert produced.free
    begin(two, "good", 2)
    assert two.worker("speaker").numbers("good") == [2]
    assert not good[HERE].finished


class Numbered(msgspec.Struct, frozen=True):
    number: int


@pytest.mark.parametrize("meta", [Unsendable(object()), Numbered("one")])  # type: ignore[arg-type]
def test_a_message_that_cannot_pass_takes_no_memory_of_the_connector(two: TwoEngines, meta: msgspec.Struct) -> None:
    bad, good = two.submit("bad", *BOTH), two.submit("good", *BOTH)
    produced = two.worker("writer").produce("bad", Payload(meta, {"rows": torch.zeros(2)}))
    two.settle()
    problem = f"its {type(meta).__name__} cannot be sent to another process: "
    assert bad[HERE].failure.startswith(f"stage '{EDGE}' failed while sending a payload: {problem}")
    assert __file__ in bad[HERE].failure
    assert produced.free
    assert two.here.connector.senders[0].out == set()
    begin(two, "good", 2)
    assert two.worker("speaker").numbers("good") == [2]
    assert not good[HERE].finished


def test_a_piece_that_cannot_be_received_fails_its_request_alone(two: TwoEngines) -> None:
    bad, _ = two.submit("bad", *BOTH), two.submit("good", *BOTH)
    two.links[HERE].send(LostPiece("bad", two.number("bad"), EDGE, "a my.Piece cannot be received"))
    two.settle()
    assert bad[THERE].failure == f"stage '{EDGE}' failed while receiving a payload: a my.Piece cannot be received"
    begin(two, "good", 2)
    assert two.worker("speaker").numbers("good") == [2]


def test_an_address_that_cannot_be_sent_fails_the_connection_alone() -> None:
    two = TwoEngines(connect=False)
    with patch.object(CopySender, "address", odd(Unsendable(object()))):
        two.connect()
    (error,) = two.connected[HERE]
    assert str(error).startswith(f"stage '{EDGE}' failed while connecting its ends: an address cannot be sent")
    assert __file__ in str(error)
    assert write_text(two, "text")
    two.connect()
    assert two.connected[HERE][-1] is None
