"""How far a producer gets ahead of its consumers, over fake stages driven by hand."""

from omni.device import COMPLETED
from omni.stage import Feed, Pause, Resume
from tests.support.fake_graph import (
    FakeGraph,
    fake_pipeline,
    lent,
)

EDGE = "writer->speaker"
BOTH = ("text", "audio")
CREDIT = 4


def graph_of(credit: int = CREDIT) -> FakeGraph:
    return FakeGraph(pipeline=fake_pipeline(credit))


def write(graph: FakeGraph, request_id: str, count: int) -> None:
    for number in range(count):
        graph.writer.produce(request_id, lent(number))
    graph.settle()


def inputs(graph: FakeGraph, request_id: str) -> list[Feed]:
    return [feed for feed in graph.speaker.fed(request_id) if feed.lease is not None]


def test_a_request_pauses_once_without_credit_and_resumes_at_half() -> None:
    graph = graph_of()
    graph.submit("r", *BOTH)
    write(graph, "r", CREDIT - 1)
    assert graph.writer.pauses("r") == []
    write(graph, "r", 1)
    assert graph.writer.pauses("r") == [Pause]
    write(graph, "r", 2)  # was under way
    held = inputs(graph, "r")
    for feed in held[:3]:
        feed.release(COMPLETED)
        graph.settle()
        assert graph.writer.pauses("r") == [Pause]
    held[3].release(COMPLETED)
    graph.settle()
    assert graph.writer.pauses("r") == [Pause, Resume]
    write(graph, "r", 2)
    assert graph.writer.pauses("r") == [Pause, Resume, Pause]


def test_an_acquired_payload_does_not_count_and_is_not_free() -> None:
    graph = graph_of()
    graph.submit("r", *BOTH)
    made = [graph.writer.produce("r", lent(number)) for number in range(CREDIT - 1)]
    graph.settle()
    held = inputs(graph, "r")
    for feed in held:
        feed.acquire()
        feed.acquire()
    write(graph, "r", CREDIT - 1)
    assert graph.writer.pauses("r") == []
    assert not any(p.released or p.free for p in made)
    for feed in held:
        feed.release(COMPLETED)
    assert all(p.released and p.free for p in made)
    write(graph, "r", 1)
    assert graph.writer.pauses("r") == [Pause], "a release of what was acquired does not count again"


def test_finished_producers_and_requests_get_no_message() -> None:
    graph = graph_of()
    for name in ("done", "over"):
        graph.submit(name, *BOTH)
        write(graph, name, CREDIT)
    graph.finish("done")
    held = inputs(graph, "over")
    graph.speaker.fail("over", RuntimeError("no voice"))  # type: ignore[arg-type]
    graph.settle()
    for feed in held:
        feed.release(COMPLETED)
    graph.speaker.release("done")
    graph.settle()
    assert graph.writer.pauses("done") == graph.writer.pauses("over") == [Pause]
