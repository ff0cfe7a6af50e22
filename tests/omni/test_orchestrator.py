"""Routing over fake stages, driven by hand."""

from typing import Any

import msgspec
import pytest

from omni.engine import EngineRequest, RequestFinished
from omni.errors import OmniError, StageError
from omni.payload import Payload
from tests.support.fake_graph import CountingConnector, FakeGraph, Recorder, host, lent, sound

BOTH = ("text", "audio")
GIVEN_UP = OmniError("the client went away")


@pytest.fixture
def graph() -> FakeGraph:
    return FakeGraph()


def test_a_request_opens_the_stages_it_uses_with_their_sources(graph: FakeGraph):
    graph.submit("r", *BOTH)
    assert graph.seer.opened("r").inputs == {"frontend"}
    assert graph.writer.opened("r").inputs == {"frontend", "seer->writer"}
    assert graph.speaker.opened("r").inputs == {"writer->speaker"}
    assert graph.writer.numbers("r") == [0]
    assert graph.writer.ended("r") == ["frontend"]


def test_stages_that_a_request_does_not_need_are_left_out(graph: FakeGraph):
    graph.submit("r", "text", seer=False)
    assert graph.writer.opened("r").inputs == {"frontend"}
    assert graph.seer.taken == graph.speaker.taken == []


def test_an_output_that_nothing_fed_can_reach_is_refused(graph: FakeGraph):
    recorder = Recorder()
    graph.engine.submit(EngineRequest("r", frozenset({"text"}), {}), recorder)
    graph.settle()
    assert "no stage that it feeds leads to a wanted output" in recorder.failure
    assert graph.engine.idle


def test_a_second_request_of_the_same_id_is_refused_and_the_first_goes_on(graph: FakeGraph):
    first = graph.submit("r", "text")
    assert "already under way" in graph.submit("r", "text").failure
    graph.finish("r")
    assert first.finished
    assert isinstance(first.outputs[-1], RequestFinished)


def test_payloads_keep_their_order_and_the_end_comes_last(graph: FakeGraph):
    recorder = graph.submit("r", *BOTH)
    for number in range(5):
        graph.writer.produce("r", host(number))
    graph.finish("r")
    assert graph.speaker.numbers("r") == [0, 1, 2, 3, 4]
    assert graph.speaker.ended("r") == ["writer->speaker"]
    assert recorder.chunks == [("text", number) for number in range(5)]


def test_fan_in_brings_each_source_and_each_end(graph: FakeGraph):
    graph.submit("r", "text")
    graph.seer.produce("r", lent(7))
    graph.seer.done("r")
    graph.settle()
    assert graph.writer.numbers("r") == [0, 7]
    assert graph.writer.ended("r") == ["frontend", "seer->writer"]


def test_only_host_payloads_of_wanted_modalities_reach_the_user(graph: FakeGraph):
    recorder = graph.submit("r", "audio")
    graph.writer.produce("r", host(1))
    graph.writer.produce("r", lent(2))
    graph.speaker.produce("r", sound(3))
    graph.settle()
    assert recorder.chunks == [("audio", 3)]


def test_other_stages_abort_once_every_wanted_one_is_done(graph: FakeGraph):
    recorder = graph.submit("r", "text")
    graph.finish("r")
    assert recorder.finished_stages == ["writer"]
    assert isinstance(recorder.outputs[-1], RequestFinished)
    assert graph.seer.aborts("r") == 1
    assert graph.writer.aborts("r") == 0
    assert graph.engine.idle


def test_a_consumer_that_is_done_early_gets_no_more_and_frees_its_producer(graph: FakeGraph):
    recorder = graph.submit("r", *BOTH)
    before = graph.writer.produce("r", lent(1))
    graph.settle()
    graph.speaker.done("r", "length")
    after = graph.writer.produce("r", lent(2))
    graph.settle()
    assert after.free, "nobody will gather it"
    assert not before.free, "it was delivered, so it is the consumer's to release"
    assert len(graph.speaker.fed("r")) == 1
    graph.finish("r")
    assert recorder.finished_stages == ["speaker", "writer"]
    assert graph.speaker.ended("r") == []


def test_payloads_under_way_to_a_consumer_that_ends_are_given_up():
    graph = FakeGraph(connectors={"writer->speaker": CountingConnector(arriving=False)})
    graph.submit("r", *BOTH)
    held = graph.writer.produce("r", lent(1))
    graph.settle()
    assert not held.free
    graph.speaker.done("r")
    graph.settle()
    assert held.free


@pytest.mark.parametrize("stage", ["seer", "writer", "speaker"])
def test_a_failed_stage_ends_its_request_alone(stage: str, graph: FakeGraph):
    failing, other = graph.submit("bad", *BOTH), graph.submit("good", *BOTH)
    graph.workers[stage].fail("bad", StageError(stage, "thinking", "no idea"))
    graph.settle()
    assert failing.failure == f"stage {stage!r} failed while thinking: no idea"
    for name, worker in graph.workers.items():
        assert worker.aborts("bad") == (name != stage), "the stage that failed has freed it itself"
        assert worker.held == {"good"}
    assert not other.finished


@pytest.mark.parametrize("progress", range(6))
def test_an_abort_at_any_point_frees_everything(progress: int, graph: FakeGraph):
    recorder = graph.submit("r", *BOTH)
    steps = (
        lambda: graph.seer.produce("r", lent(0)),
        lambda: graph.seer.done("r"),
        lambda: graph.writer.produce("r", lent(1)),
        lambda: graph.writer.done("r"),
        lambda: graph.speaker.produce("r", sound(2)),
    )
    every = []
    for step in steps[:progress]:
        made = step()
        every += [made] if made is not None else []
        graph.settle()
    graph.engine.abort("r", GIVEN_UP)
    graph.engine.abort("r", GIVEN_UP)
    graph.settle()
    assert recorder.failure == str(GIVEN_UP)
    graph.seer.release("r")  # leases of stages that were done before the abort
    graph.writer.release("r")
    assert all(made.free for made in every)
    assert graph.engine.idle
    assert all(count <= 1 for count in (worker.aborts("r") for worker in graph.workers.values()))


def test_payloads_produced_after_an_abort_are_released(graph: FakeGraph):
    graph.submit("r", *BOTH)
    graph.engine.abort("r", GIVEN_UP)
    late = graph.writer.produce("r", lent(1))
    graph.settle()
    assert late.free
    assert graph.speaker.fed("r") == []


CUT = OSError("the cable is cut")


@pytest.mark.parametrize(
    ("where", "error", "message"),
    [
        ("send", CUT, "stage 'writer->speaker' failed while sending a payload: OSError: the cable is cut"),
        ("pieces", CUT, "stage 'writer->speaker' failed while sending a payload: OSError: the cable is cut"),
        ("pieces", OmniError("the peer is gone"), "the peer is gone"),
        ("receive", CUT, "stage 'writer->speaker' failed while receiving a payload: OSError: the cable is cut"),
        ("poll", CUT, "stage 'writer->speaker' failed while receiving a payload: OSError: the cable is cut"),
        ("poll", OmniError("the peer is gone"), "the peer is gone"),
    ],
)
def test_a_connector_that_fails_ends_one_request_and_frees_the_payload(where: str, error: Exception, message: str):
    graph = FakeGraph(connectors={"writer->speaker": CountingConnector(where, error)})
    failing, other = graph.submit("bad", *BOTH), graph.submit("good", "text")
    held = graph.writer.produce("bad", lent(1))
    graph.settle()
    assert failing.failure.startswith(message)
    assert held.free
    assert not other.finished


def test_edge_arguments_reach_the_adapter():
    class Args(msgspec.Struct, frozen=True):
        voice: str

    given: list[msgspec.Struct | None] = []

    class Adapter:
        def __init__(self, args: msgspec.Struct | None) -> None:
            given.append(args)

        def push(self, payload: Payload) -> list[Payload]:
            return []

        def finish(self, reason: str) -> list[Payload]:
            return []

    graph = FakeGraph(adapters={"writer->speaker": Adapter})
    graph.submit("a", *BOTH, edges={"writer->speaker": Args("low")})
    graph.submit("b", *BOTH)
    graph.submit("c", "text")
    assert given == [Args("low"), None]


@pytest.mark.parametrize("field", ["inputs", "edges", "sampling"])
def test_a_name_that_the_pipeline_does_not_have_is_refused(field: str, graph: FakeGraph):
    recorder = Recorder()
    given: dict[str, Any] = {"inputs": {"writer": [host(0)]}}
    given[field] = given.get(field, {}) | {"narrator": [host(1)]}
    graph.engine.submit(EngineRequest("r", frozenset({"text"}), **given), recorder)
    graph.settle()
    assert "narrator" in recorder.failure
    assert graph.engine.idle
