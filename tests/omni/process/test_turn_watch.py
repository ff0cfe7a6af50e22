"""An engine whose loop hangs in a launch without an error, by an injected clock."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from omni.errors import LostRankError
from omni.process import turn_watch
from omni.process.turn_watch import TurnWatch, turn_limit
from tests.support.fake_graph import FakeGraph
from tests.support.patience import PATIENCE_SECONDS

LIMIT = 60.0


class Clock:
    """A second later at each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def seconds(self) -> float:
        self.now += 1.0
        return self.now


def watch_of(graph: FakeGraph, *, cut: bool = False) -> tuple[TurnWatch, list[Exception]]:
    ended: list[Exception] = []
    return TurnWatch(graph.engine, LIMIT, ended.append, Clock().seconds, cut=cut), ended


def looks(watch: TurnWatch, count: int) -> bool:
    return any(watch.look() for _ in range(count))


@contextmanager
def hanging(graph: FakeGraph) -> Iterator[None]:
    """While entered, the loop is within a turn."""
    begun, go_on = threading.Event(), threading.Event()

    def tick() -> bool:
        begun.set()
        go_on.wait()
        return False

    graph.writer.tick = tick  # type: ignore[method-assign]
    graph.engine.start()
    assert begun.wait(PATIENCE_SECONDS)
    try:
        yield
    finally:
        go_on.set()
        graph.engine.close()


def test_a_turn_that_hangs_ends_the_engine() -> None:
    graph = FakeGraph()
    watch, ended = watch_of(graph)
    with hanging(graph):
        assert not looks(watch, 61)
        assert not ended
        assert looks(watch, 1)
    assert isinstance(ended[0], TimeoutError)
    assert "has taken longer than 60 s, as if its device or a stage hung; raise engine.turn_seconds" in str(ended[0])


def test_a_turn_that_hangs_with_other_ranks_ends_all_of_them() -> None:
    graph = FakeGraph()
    watch, ended = watch_of(graph, cut=True)
    with hanging(graph):
        assert looks(watch, 62)
    assert isinstance(ended[0], LostRankError)


@pytest.mark.parametrize(
    ("chosen", "cut", "device", "limit"),
    [
        (None, False, "cuda", 300.0),
        (None, True, "cuda", 60.0),
        (None, False, "cpu", None),
        (None, True, "cpu", None),
        (5.0, False, "cuda", 5.0),
        (5.0, True, "cuda", 5.0),
        (5.0, False, "cpu", 5.0),
    ],
)
def test_the_limit_of_a_turn(chosen: float | None, cut: bool, device: str, limit: float | None) -> None:
    assert turn_limit(chosen, device, cut=cut) == limit


def test_the_watch_thread_reports_a_hanging_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_watch, "_LOOK_SECONDS", 0.0)
    graph, ended = FakeGraph(), threading.Event()
    with hanging(graph):
        TurnWatch(graph.engine, LIMIT, lambda error: ended.set(), Clock().seconds, cut=False).start()
        assert ended.wait(PATIENCE_SECONDS)


def test_each_turn_has_the_time() -> None:
    """The loop runs in this thread: the watch looks within its turns."""
    graph = FakeGraph()
    watch, _ = watch_of(graph)
    turns = []

    def tick() -> bool:
        turns.append(graph.engine.turn)
        assert not looks(watch, 40)
        if len(turns) == 5:
            graph.engine.stop()
        return True

    graph.writer.tick = tick  # type: ignore[method-assign]
    graph.engine.run()
    assert None not in turns
    assert len(set(turns)) == 5
    assert graph.engine.turn is None


def test_an_engine_without_requests_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = FakeGraph()
    watch, _ = watch_of(graph)
    waits = []

    def wait() -> None:
        waits.append(looks(watch, 200))
        graph.engine.stop()

    monkeypatch.setattr(graph.engine._command_queue, "wait", wait)
    graph.engine.run()
    assert waits == [False]
