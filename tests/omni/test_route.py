"""Adapters that drop, split and fail; leases that are released exactly once."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni.engine import RequestFinished
from omni.errors import InputError
from omni.payload import Payload
from omni.pipeline.adapter import Adapter
from omni.stage import Ended
from omni.testing.connectors import Gate
from tests.support.fake_graph import FakeGraph, Scripted, always, host, lent

EDGE = "writer->speaker"
BOTH = ("text", "audio")


def graph_with(*copies: tuple[int, int], at_end: int = 0) -> tuple[FakeGraph, Scripted]:
    adapter = Scripted(copies, at_end)
    return FakeGraph(adapters={EDGE: always(adapter)}), adapter


@pytest.mark.parametrize("without", [0, 2])
def test_a_payload_whose_tensors_the_adapter_drops_is_released_at_once(without: int):
    graph, _ = graph_with((0, without))
    graph.submit("r", *BOTH)
    produced = graph.writer.produce("r", lent(1))
    graph.settle()
    assert produced.free
    assert len(graph.speaker.fed("r")) == without, "they may stay as long as they like"


def test_a_payload_that_the_adapter_splits_is_released_with_its_last_part():
    graph, _ = graph_with((3, 1))
    graph.submit("r", *BOTH)
    produced = graph.writer.produce("r", lent(1))
    graph.settle()
    inputs = [feed for feed in graph.speaker.fed("r") if feed.payload.tensors]
    gate = Gate()
    assert len(inputs) == 3
    for feed in inputs:
        assert graph.connectors[EDGE].released == []
        feed.release(gate)
    assert len(graph.connectors[EDGE].released) == 1
    assert not produced.free, "the consumer's work that reads it is not over"
    gate.open = True
    assert produced.free


def test_an_input_names_the_edge_that_it_came_over():
    graph, _ = graph_with((1, 1), at_end=1)
    graph.submit("r", *BOTH)
    graph.writer.produce("r", lent(1))
    graph.settle()
    graph.writer.done("r")
    graph.settle()
    assert [feed.source for feed in graph.speaker.fed("r")] == [EDGE] * 3


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=8))
def test_every_payload_is_released_once_for_any_adapter(copies: list[tuple[int, int]]):
    graph, _ = graph_with(*copies)
    graph.submit("r", *BOTH)
    made = [graph.writer.produce("r", lent(number)) for number in range(len(copies))]
    graph.settle()
    assert len(graph.speaker.fed("r")) == sum(a + b for a, b in copies)
    graph.speaker.release("r")
    connector = graph.connectors[EDGE]
    assert sorted(map(id, connector.released)) == sorted(map(id, connector.sent))
    assert all(produced.free for produced in made)


def test_inputs_that_only_the_end_completes_come_before_the_end():
    graph, adapter = graph_with((0, 0), at_end=2)
    recorder = graph.submit("r", *BOTH)
    graph.writer.produce("r", host(1))
    graph.writer.done("r", "length")
    graph.settle()
    assert adapter.reason == "length"
    assert graph.speaker.numbers("r") == [99, 99]
    assert graph.speaker.ended("r") == [EDGE]
    graph.speaker.done("r")
    graph.settle()
    assert isinstance(recorder.outputs[-1], RequestFinished)


class FailingAdapter:
    """Raises `error` in the method `where`; passes everything else on."""

    def __init__(self, where: str, error: Exception) -> None:
        self._where = where
        self._error = error

    def push(self, payload: Payload) -> list[Payload]:
        if self._where == "push":
            raise self._error
        return [payload]

    def finish(self, reason: str) -> list[Payload]:
        if self._where == "finish":
            raise self._error
        return []


@pytest.mark.parametrize("where", ["push", "finish"])
def test_an_adapter_that_raises_fails_its_request_alone(where: str):
    good = Scripted([(1, 0)] * 4)
    adapters: Iterator[Adapter] = iter([FailingAdapter(where, ValueError("odd payload")), good])
    graph = FakeGraph(adapters={EDGE: lambda args: next(adapters)})
    failing, other = graph.submit("bad", *BOTH), graph.submit("good", *BOTH)
    produced = [graph.writer.produce(name, lent(1)) for name in ("bad", "bad", "good")]
    graph.finish("bad")
    assert failing.failure.startswith(
        f"stage {EDGE!r} failed while adapting a payload: ValueError: odd payload ({__file__}:"
    )
    assert not other.finished
    graph.speaker.release("good")
    assert all(p.free for p in produced)
    assert all(worker.held == {"good"} for worker in graph.workers.values())


def test_an_input_error_of_an_adapter_reaches_the_user_unchanged():
    error = InputError("voice", "cannot say this", "use another")
    graph = FakeGraph(adapters={EDGE: always(FailingAdapter("push", error))})
    recorder = graph.submit("r", *BOTH)
    graph.writer.produce("r", host(1))
    graph.settle()
    assert recorder.failure == str(error)


def test_an_adapter_that_cannot_be_made_fails_its_request_before_any_stage():
    def refuse(args: object) -> Scripted:
        raise KeyError("voice")

    graph = FakeGraph(adapters={EDGE: refuse})
    assert "opening its adapter: KeyError: 'voice'" in graph.submit("r", *BOTH).failure
    assert all(worker.taken == [] for worker in graph.workers.values())
    assert graph.engine.idle


def test_a_consumer_that_is_done_gets_no_end_of_its_producer():
    adapter = Scripted([], at_end=1)
    graph = FakeGraph(adapters={"seer->writer": always(adapter)})
    recorder = graph.submit("r", *BOTH)
    graph.finish("r")
    graph.seer.done("r", "length")
    graph.settle()
    assert recorder.finished_stages == ["writer", "seer"]
    assert adapter.reason == "", "its adapter makes nothing more"
    assert graph.writer.ended("r") == ["frontend"]
    assert graph.speaker.ended("r") == [EDGE]


def test_a_route_that_has_sent_its_end_has_nothing_to_do():
    """Those that have are asked in every round."""
    graph = FakeGraph()
    graph.submit("r", *BOTH)
    active = graph.orchestrator._active["r"]
    producer, consumer = active.outs["seer->writer"], active.ins["seer->writer"]
    assert (producer.busy, consumer.busy) == (False, False)
    producer.end("stop")
    for half in (producer, consumer):
        assert (half.busy, half.tick(), half.busy, half.tick()) == (True, True, False, False)
    assert graph.writer.inbox[-1] == Ended("r", "seer->writer")
