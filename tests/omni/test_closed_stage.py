"""A stage whose worker is in an unknown state: closed, its payloads released, and all other stages continue."""

import pytest

from omni.device import COMPLETED
from omni.device.cpu import CpuDevice
from omni.errors import StageError
from omni.stage import Feed, MailboxWorker, Open
from omni.testing.stages.driver import StageDriver
from tests.support.fake_graph import FakeGraph, host, lent

pytestmark = pytest.mark.plants_faults

BOTH = ("text", "audio")
BROKEN = RuntimeError("an unknown state")


@pytest.fixture
def graph() -> FakeGraph:
    return FakeGraph()


def test_requests_of_a_closed_stage_fail_and_others_continue(graph: FakeGraph) -> None:
    both, text = graph.submit("both", *BOTH), graph.submit("text", "text")
    graph.speaker.broken = BROKEN
    graph.settle()
    assert both.failure.startswith("stage 'speaker' failed while running: RuntimeError: an unknown state")
    assert graph.speaker.closed
    assert graph.writer.aborts("both") == 1
    graph.writer.produce("text", host(1))
    graph.finish("text")
    assert text.succeeded
    assert text.chunks == [("text", 1)]


def test_later_requests_that_need_it_are_refused(graph: FakeGraph) -> None:
    graph.speaker.broken = BROKEN
    graph.settle()
    refused = graph.submit("late", *BOTH)
    problem = "it is closed after a fault, RuntimeError: an unknown state ("
    assert refused.failure.startswith(f"stage 'speaker' failed while running: {problem}")
    assert refused.failure.endswith("; open the model again")
    assert graph.writer.aborts("late") == 0
    graph.submit("text", "text")
    graph.finish("text")
    assert graph.engine.idle
    assert graph.engine.usage()["speaker"] == {}


def test_payloads_that_it_held_are_released(graph: FakeGraph) -> None:
    """Its `close` releases none of them."""
    graph.submit("r", *BOTH)
    held = [graph.writer.produce("r", lent(number)) for number in range(3)]
    graph.settle()
    late = graph.speaker.fed("r")
    assert not any(produced.free for produced in held)
    graph.speaker.broken = BROKEN
    graph.settle()
    assert all(produced.free for produced in held)
    for feed in late:  # for example by a thread of its own
        feed.acquire()
        feed.release(COMPLETED)
    connector = graph.connectors["writer->speaker"]
    assert len(connector.released) == len(connector.sent) == 3


def test_payloads_of_a_request_that_is_over_are_released_too(graph: FakeGraph) -> None:
    recorder = graph.submit("r", *BOTH)
    held = graph.writer.produce("r", lent(1))
    graph.writer.done("r")
    graph.settle()
    graph.speaker.done("r")
    graph.settle()
    assert recorder.succeeded
    assert not held.free
    graph.speaker.broken = BROKEN
    graph.settle()
    assert held.free


def test_the_device_is_through_before_anything_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = FakeGraph()
    graph.submit("r", *BOTH)
    held = graph.writer.produce("r", lent(1))
    graph.settle()
    free: list[bool] = []
    monkeypatch.setattr(CpuDevice, "synchronize", lambda device: free.append(held.free))
    graph.speaker.broken = BROKEN
    graph.settle()
    assert free == [False]
    assert held.free


def test_a_request_that_a_closed_stage_has_finished_goes_on(graph: FakeGraph) -> None:
    recorder = graph.submit("r", *BOTH)
    graph.writer.produce("r", host(1))
    graph.writer.done("r")
    graph.settle()
    graph.writer.broken = BROKEN
    graph.settle()
    assert not recorder.finished
    graph.speaker.done("r")
    graph.settle()
    assert recorder.succeeded


def test_a_worker_that_cannot_be_closed_is_closed_all_the_same(
    graph: FakeGraph, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError("busy")

    failed = graph.submit("r", *BOTH)
    monkeypatch.setattr(graph.speaker, "close", fail)
    graph.speaker.broken = BROKEN
    graph.settle()
    assert failed.finished
    assert "could not be closed after its fault" in caplog.text
    graph.submit("text", "text")
    graph.finish("text")
    graph.engine.close()


class Forgetful(MailboxWorker[str]):
    """Raises in `feed`, before or after it has acquired the input."""

    def __init__(self, *, acquires: bool) -> None:
        super().__init__("forgetful")
        self._acquires = acquires
        self.kept: list[Feed] = []

    def open(self, message: Open) -> str:
        return message.request_id

    def feed(self, request: str, message: Feed) -> None:
        if self._acquires:
            message.acquire()
            self.kept.append(message)
        raise KeyError("codes")

    def end(self, request: str, source: str) -> None: ...

    def pause(self, request: str) -> None: ...

    def resume(self, request: str) -> None: ...

    def drop(self, request: str) -> None: ...

    def advance(self) -> bool:
        return False

    def usage(self) -> dict[str, int]:
        return {}

    def counters(self) -> dict[str, int]:
        return {}


@pytest.mark.parametrize("acquires", [False, True])
def test_a_feed_that_raises_releases_the_input_unless_it_was_acquired(acquires: bool) -> None:
    worker = Forgetful(acquires=acquires)
    driver = StageDriver(worker, CpuDevice().stream("forgetful"))
    driver.open("r")
    ref = driver.feed("r", lent(1))
    driver.tick()
    error = driver.ends["r"]
    assert isinstance(error.error, StageError)  # type: ignore[union-attr]
    assert ref.freed is not acquires
    for message in worker.kept:
        message.release(COMPLETED)
    assert ref.freed


def test_a_payload_without_its_type_closes_the_stage(graph: FakeGraph) -> None:
    failed = graph.submit("r", *BOTH)
    graph.speaker.produce("r", "samples")  # type: ignore[arg-type]
    graph.settle()
    assert "the payload of a Produced is a str: give an omni.payload.Payload" in failed.failure
    assert "speaker" in graph.engine._orchestrator.closed_stages
