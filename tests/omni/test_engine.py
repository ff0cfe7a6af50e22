"""The engine's thread, its commands and its end, over fake stages."""

import threading
from functools import partial

from omni.engine import EngineOutput, EngineRequest, RequestFailed, RequestFinished
from omni.errors import OmniError
from tests.support.fake_graph import FakeGraph, Recorder, host, lent
from tests.support.patience import PATIENCE_SECONDS


class Waiting(Recorder):
    """A sink that another thread can wait for. first: set with the first output."""

    def __init__(self) -> None:
        super().__init__()
        self.first = threading.Event()
        self.last = threading.Event()
        self.thread: threading.Thread | None = None

    def __call__(self, output: EngineOutput) -> None:
        super().__call__(output)
        self.thread = threading.current_thread()
        self.first.set()
        if self.over:
            self.last.set()


def request(request_id: str) -> EngineRequest:
    return EngineRequest(request_id, frozenset({"text"}), {"writer": [host(0)]})


def test_the_loop_runs_in_a_thread_of_its_own_and_sinks_are_called_there():
    graph, sink = FakeGraph(), Waiting()
    graph.writer.answer = host(1)
    graph.engine.start()
    graph.engine.submit(request("r"), sink)
    assert sink.last.wait(PATIENCE_SECONDS)
    assert sink.thread is not threading.main_thread()
    assert sink.chunks == [("text", 1)]
    assert isinstance(sink.outputs[-1], RequestFinished)
    graph.engine.close()
    assert all(worker.closed for worker in graph.workers.values())
    assert all(connector.closed == 1 for connector in graph.connectors.values())


def test_an_idle_engine_wakes_for_the_next_request():
    graph = FakeGraph()
    graph.writer.answer = host(1)
    graph.engine.start()
    for number in range(3):
        sink = Waiting()
        graph.engine.submit(request(str(number)), sink)
        assert sink.last.wait(PATIENCE_SECONDS)
    graph.engine.close()


def test_close_while_busy_tells_every_sink_and_is_idempotent():
    graph, sinks = FakeGraph(), [Waiting(), Waiting()]
    graph.engine.start()
    for number, sink in enumerate(sinks):
        graph.engine.submit(request(str(number)), sink)
    graph.engine.close()
    graph.engine.close()
    for sink in sinks:
        assert sink.last.is_set()
        assert "the engine was closed" in sink.failure
    assert all(worker.closed for worker in graph.workers.values())


def test_a_request_that_the_loop_never_took_is_told_of_the_close():
    graph, sink = FakeGraph(), Waiting()
    graph.engine.submit(request("r"), sink)
    graph.engine.close()
    assert "the engine was closed" in sink.failure


def test_a_request_after_the_close_is_refused():
    graph, sink = FakeGraph(), Waiting()
    graph.engine.close()
    graph.engine.submit(request("r"), sink)
    graph.engine.abort("r", OmniError("too late"))
    assert "the engine was closed" in sink.failure


def test_a_worker_that_raises_ends_its_requests_and_refuses_new_ones():
    graph, first, second = FakeGraph(), Waiting(), Waiting()
    graph.engine.start()
    graph.engine.submit(request("a"), first)
    graph.writer.broken = RuntimeError("the device fell off the bus")
    graph.engine.submit(request("b"), second)
    for sink in (first, second):
        assert sink.last.wait(PATIENCE_SECONDS)
        assert isinstance(sink.outputs[-1], RequestFailed)
        assert "RuntimeError: the device fell off the bus" in sink.failure
    graph.engine.close()


def test_idle_means_no_command_no_request_and_nothing_held():
    graph = FakeGraph()
    sink, idle = Recorder(), partial(getattr, graph.engine, "idle")
    assert idle()
    graph.engine.submit(request("r"), sink)
    assert not idle(), "a command is waiting"
    graph.settle()
    assert not idle(), "a request is under way"
    graph.writer.done("r")
    graph.seer.held.add("left over")
    graph.settle()
    assert sink.over
    assert not idle(), "a stage holds something"
    graph.seer.held.clear()
    assert idle()


def test_usage_is_told_by_stage():
    graph = FakeGraph()
    graph.submit("r", "text", "audio")
    assert graph.engine.usage() == {name: {"requests": 1} for name in ("seer", "writer", "speaker")}


def test_tick_says_whether_anything_happened():
    graph = FakeGraph()
    assert not graph.engine.tick()
    graph.writer.produce("nobody", lent(1))
    assert graph.engine.tick()
    assert not graph.engine.tick()
