"""Closing an engine of which parts cannot be closed: the others are, and the first error is raised."""

import logging
from collections.abc import Callable

import pytest

from tests.support.fake_graph import FakeGraph, FakeWorker


class Panic(BaseException):
    """As of a library in another language."""


def closes_by(graph: FakeGraph, worker: FakeWorker, close: Callable[[], None]) -> None:
    worker.close = close  # type: ignore[method-assign]
    graph.engine._left_to_close = graph.engine._steps_to_close()


def break_close(graph: FakeGraph, worker: FakeWorker, error: BaseException) -> None:
    def close() -> None:
        raise error

    closes_by(graph, worker, close)


@pytest.mark.parametrize("error", [RuntimeError("first"), Panic("first")], ids=lambda error: type(error).__name__)
def test_all_is_closed_and_the_first_error_is_raised_once(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    graph = FakeGraph()
    break_close(graph, graph.seer, error)
    break_close(graph, graph.writer, ValueError("second"))
    graph.engine.start()
    with caplog.at_level(logging.ERROR), pytest.raises(type(error), match="first"):
        graph.engine.close()
    assert graph.speaker.closed
    assert [connector.closed for connector in graph.connectors.values()] == [1, 1]
    assert [record.exc_info[1].args for record in caplog.records if record.exc_info] == [("second",)]  # type: ignore[union-attr]
    graph.engine.close()
    assert [connector.closed for connector in graph.connectors.values()] == [1, 1]


def test_ctrl_c_leaves_the_rest_and_the_error_to_the_next_call() -> None:
    graph = FakeGraph()
    presses = [KeyboardInterrupt()]

    def close() -> None:
        if presses:
            raise presses.pop()
        graph.writer.closed = True

    break_close(graph, graph.seer, RuntimeError("first"))
    closes_by(graph, graph.writer, close)
    with pytest.raises(KeyboardInterrupt):
        graph.engine.close()
    assert not graph.speaker.closed
    with pytest.raises(RuntimeError, match="first"):
        graph.engine.close()
    assert graph.writer.closed
    assert graph.speaker.closed


def test_an_error_that_cannot_be_printed_still_ends_the_requests() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    graph = FakeGraph()
    sink = graph.submit("a", "text", seer=False)
    graph.writer.broken = Mute()
    graph.engine.start()
    assert graph.engine._thread is not None
    try:
        for _ in range(1000):
            if sink.over:
                break
            graph.engine._thread.join(0.01)
        assert "Mute: without a message" in sink.failure
    finally:
        graph.engine.close()
