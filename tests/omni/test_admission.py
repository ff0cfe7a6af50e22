"""Admitted, waiting and refused requests, over fake stages driven by hand."""

import gc
import sys
import weakref
from collections.abc import Callable
from types import FrameType

import pytest
import torch

from omni.engine import EngineOutput, EngineRequest, RequestFailed, RequestFinished, StageFinished, StageOutput
from omni.errors import OmniError, OverloadedError
from omni.payload import Payload
from omni.pipeline.adapter import PassThrough
from tests.support.fake_graph import FakeGraph, FakeWorker, Note, Recorder, host, text_request

GIVEN_UP = OmniError("the client went away")


def calls_of(action: Callable[[], object]) -> int:
    """How many Python functions `action` calls."""
    count = 0

    def profile(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event == "call"

    gc.disable()  # a library may have the collector call functions
    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def opened(worker: FakeWorker) -> list[str]:
    return [m.request_id for m in worker.taken if type(m).__name__ == "Open"]


def test_order_and_salt_reach_every_stage() -> None:
    graph = FakeGraph()
    graph.submit("r", "text", "audio", priority=3, cache_salt="tenant")
    for worker in graph.workers.values():
        message = worker.opened("r")
        assert (message.order, message.cache_salt) == ((3, 0), "tenant")


def test_beyond_the_limit_a_request_is_refused_with_the_numbers() -> None:
    graph = FakeGraph(max_active=2, max_waiting=3)
    for name in "abcde":
        graph.submit(name, "text")
    late = graph.submit("f", "text").outputs[-1]
    assert isinstance(late, RequestFailed)
    assert isinstance(late.error, OverloadedError)
    assert str(late.error) == (
        "engine.max_waiting_requests: 2 requests are under way and 3 wait, the most allowed; retry later, or raise it"
    )
    graph.finish("a")
    assert not graph.submit("f", "text").finished


def test_an_aborted_waiting_request_fails_and_reaches_no_stage() -> None:
    graph = FakeGraph(max_active=1, max_waiting=2)
    graph.submit("a", "text")
    waiting = graph.submit("b", "text")
    graph.engine.abort("b", GIVEN_UP)
    graph.settle()
    assert waiting.failure == str(GIVEN_UP)
    again = graph.submit("b", "text")
    graph.finish("a")
    assert opened(graph.writer) == ["a", "b"]
    graph.finish("b")
    assert again.finished
    assert graph.engine.idle
    assert graph.writer.aborts("b") == 0


def test_an_id_that_waits_is_taken() -> None:
    graph = FakeGraph(max_active=1)
    graph.submit("a", "text")
    graph.submit("b", "text")
    assert "already under way" in graph.submit("b", "text").failure


def test_a_mistake_in_a_request_is_reported_before_it_waits() -> None:
    graph = FakeGraph(max_active=1)
    graph.submit("a", "text")
    recorder = Recorder()
    graph.engine.submit(EngineRequest("b", frozenset({"smell"}), {"writer": [host(0)]}), recorder)
    graph.settle()
    assert "'smell'" in recorder.failure


def test_a_request_that_cannot_be_opened_lets_the_next_in() -> None:
    refused = iter([False, True, False])

    def make(args: object) -> PassThrough:
        if next(refused):
            raise KeyError("voice")
        return PassThrough()

    graph = FakeGraph(adapters={"writer->speaker": make}, max_active=1)
    sinks = [graph.submit(name, "text", "audio") for name in "abc"]
    graph.engine.abort("a", GIVEN_UP)
    graph.settle()
    assert "opening its adapter" in sinks[1].failure
    assert opened(graph.writer) == ["a", "c"]


def test_a_close_fails_waiting_requests() -> None:
    graph = FakeGraph(max_active=1)
    sinks = [graph.submit(name, "text") for name in "abc"]
    graph.engine.close()
    assert all("the engine was closed" in sink.failure for sink in sinks)
    assert opened(graph.writer) == ["a"]


def test_a_long_queue_costs_a_tick_nothing() -> None:
    def crowded(waiting: int) -> FakeGraph:
        graph = FakeGraph(max_active=1)
        for number in range(waiting + 1):
            graph.engine.submit(text_request(str(number)), print)
        graph.settle()
        return graph

    few, many = crowded(10), crowded(10_000)
    assert many.orchestrator.unfinished == 10_001
    assert calls_of(many.engine.tick) == calls_of(few.engine.tick)
    last = {few: "10", many: "10000"}
    abort = {graph: calls_of(lambda g=graph: g.orchestrator.abort(last[g], GIVEN_UP)) for graph in last}  # type: ignore[misc]
    assert abort[many] == abort[few]


def test_aborted_waiting_requests_are_not_kept() -> None:
    graph = FakeGraph(max_active=1)
    graph.submit("a", "text")
    kept = []
    for number in range(1000):
        features = torch.zeros(1)
        kept.append(weakref.ref(features))
        inputs = {"writer": [Payload(Note(number=number), {"x": features})]}
        graph.engine.submit(EngineRequest(str(number), frozenset({"text"}), inputs), Recorder())
        graph.engine.abort(str(number), GIVEN_UP)
    del features, inputs
    graph.settle()
    assert not any(ref() is not None for ref in kept)


class Rude:
    """A sink that cannot stand outputs of one type."""

    def __init__(self, hated: type[EngineOutput]) -> None:
        self._hated = hated
        self.outputs: list[EngineOutput] = []

    def __call__(self, output: EngineOutput) -> None:
        self.outputs.append(output)
        if isinstance(output, self._hated):
            raise RuntimeError("the pipe is broken")


@pytest.mark.parametrize("hated", [StageOutput, StageFinished, RequestFinished, RequestFailed])
def test_a_sink_that_raises_ends_its_own_request_and_nothing_else(
    hated: type[EngineOutput], caplog: pytest.LogCaptureFixture
) -> None:
    graph = FakeGraph(max_active=2)
    good = graph.submit("good", "text")
    sink = Rude(hated)
    graph.engine.submit(text_request("rude"), sink)
    graph.engine.submit(text_request("rude"), Rude(RequestFailed))
    graph.settle()
    graph.writer.produce("rude", host(1))
    graph.settle()
    if hated is RequestFailed:
        graph.writer.fail("rude", GIVEN_UP)
    else:
        graph.writer.done("rude")
    graph.settle()
    assert isinstance(sink.outputs[-1], RequestFinished if hated is RequestFinished else RequestFailed)
    assert sum(isinstance(output, RequestFinished | RequestFailed) for output in sink.outputs) == 1
    assert "the sink of request rude raised" in caplog.text
    assert not good.finished
    assert "rude" not in graph.seer.held
    graph.finish("good")
    assert isinstance(good.outputs[-1], RequestFinished)
    assert graph.orchestrator.unfinished == 0
