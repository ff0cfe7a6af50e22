"""An engine that has failed: stages in an unknown state run no more, and refusing costs nothing."""

import threading
from collections.abc import Callable

import pytest

from omni.engine import EngineOptions, EngineRequest, RequestFailed
from omni.engine.mailbox import LocalMailbox
from tests.support.fake_graph import FakeGraph, FakeWorker, Recorder, host

PATIENCE = 30.0


class Breaking(FakeWorker):
    """Raises in its first tick. ticks: how often it was given a turn."""

    def __init__(self) -> None:
        super().__init__()
        self.ticks = 0

    def tick(self) -> bool:
        self.ticks += 1
        raise RuntimeError("out of order")


class CountedMailbox(LocalMailbox):
    """waits: how often the loop waited and went on."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0

    def wait(self) -> None:
        super().wait()
        self.waits += 1


class Refused(Recorder):
    def __init__(self) -> None:
        super().__init__()
        self.told = threading.Event()

    def __call__(self, output: object) -> None:
        super().__call__(output)  # type: ignore[arg-type]
        self.told.set()


def test_a_stage_that_raised_never_runs_again_and_the_engine_sleeps():
    graph, broken, mailbox = FakeGraph(), Breaking(), CountedMailbox()
    graph.workers["writer"] = broken
    vars(graph.engine)["_workers"] = graph.workers
    graph.engine._mailbox = mailbox
    graph.engine.start()
    for number in range(3):
        sink = Refused()
        graph.engine.submit(EngineRequest(str(number), frozenset({"text"}), {"writer": [host(0)]}), sink)
        assert sink.told.wait(PATIENCE)
        assert isinstance(sink.outputs[-1], RequestFailed)
    graph.engine.close()
    assert broken.ticks == 1
    assert mailbox.waits <= 3 + 2, "it wakes for a request and for the close, not in between"


@pytest.mark.parametrize(
    ("name", "least"),
    [("max_active_requests", 1), ("max_waiting_requests", 0), ("max_waiting_bytes", 1), ("memory_bytes", 1)],
)
def test_limits_that_let_nothing_run_are_refused(name: str, least: int):
    options: Callable[..., EngineOptions] = EngineOptions
    options(**{name: least})
    with pytest.raises(ValueError, match=f"{name} must be at least {least}"):
        options(**{name: least - 1})
