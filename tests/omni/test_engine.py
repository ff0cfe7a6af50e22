"""The engine's thread, its commands and its end, over fake stages."""

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from omni.device.cpu import CpuDevice
from omni.engine import EngineOptions, EngineOutput, RequestFailed, RequestFinished
from omni.engine.command_queue import LocalCommandQueue
from omni.engine.cut import CutStages
from omni.engine.faults import Mailbox
from omni.engine.request import EngineCommand
from omni.errors import OmniError, StageError
from omni.parallel import RankLayout, silent_ranks
from omni.stage import Feed
from tests.support.fake_graph import FakeGraph, FakeWorker, Recorder, host, lent, text_request
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
        if self.finished:
            self.last.set()


def test_the_loop_runs_in_a_thread_of_its_own_and_sinks_are_called_there():
    graph, sink = FakeGraph(), Waiting()
    graph.writer.answer = host(1)
    graph.engine.start()
    graph.engine.submit(text_request("r"), sink)
    assert sink.last.wait(PATIENCE_SECONDS)
    assert sink.thread is not threading.main_thread()
    assert sink.chunks == [("text", 1)]
    assert isinstance(sink.outputs[-1], RequestFinished)
    graph.engine.close()
    assert all(worker.closed for worker in graph.workers.values())
    assert all(connector.closed == ["receiver", "sender"] for connector in graph.connectors.values())


def test_an_idle_engine_wakes_for_the_next_request():
    graph = FakeGraph()
    graph.writer.answer = host(1)
    graph.engine.start()
    for number in range(3):
        sink = Waiting()
        graph.engine.submit(text_request(str(number)), sink)
        assert sink.last.wait(PATIENCE_SECONDS)
    graph.engine.close()


class DeferringDevice(CpuDevice):
    """Has deferred captures until `enough` is set. captured: whether the engine knows that there are no more."""

    def __init__(self) -> None:
        super().__init__()
        self.enough, self.captured = threading.Event(), threading.Event()

    def capture_deferred(self) -> bool:
        if self.enough.is_set():
            self.captured.set()
            return False
        return True


def test_an_idle_engine_makes_deferred_captures_between_requests():
    graph, sink = FakeGraph(), Waiting()
    device = DeferringDevice()
    graph.engine._device = device
    graph.writer.answer = host(1)
    graph.engine.start()
    graph.engine.submit(text_request("r"), sink)
    assert sink.last.wait(PATIENCE_SECONDS)
    device.enough.set()
    assert device.captured.wait(PATIENCE_SECONDS)
    sink = Waiting()
    graph.engine.submit(text_request("s"), sink)
    assert sink.last.wait(PATIENCE_SECONDS)
    graph.engine.close()


def test_close_while_busy_fails_every_request_and_is_idempotent():
    graph, sinks = FakeGraph(), [Waiting(), Waiting()]
    graph.engine.start()
    for number, sink in enumerate(sinks):
        graph.engine.submit(text_request(str(number)), sink)
    graph.engine.close()
    graph.engine.close()
    for sink in sinks:
        assert sink.last.is_set()
        assert "the engine was closed" in sink.failure
    assert all(worker.closed for worker in graph.workers.values())


def test_a_request_that_the_loop_never_took_fails_at_the_close():
    graph, sink = FakeGraph(), Waiting()
    graph.engine.submit(text_request("r"), sink)
    graph.engine.close()
    assert "the engine was closed" in sink.failure


def test_a_request_after_the_close_is_refused():
    graph, sink = FakeGraph(), Waiting()
    graph.engine.close()
    graph.engine.submit(text_request("r"), sink)
    graph.engine.abort("r", OmniError("too late"))
    assert "the engine was closed" in sink.failure


@pytest.mark.plants_faults
def test_a_worker_that_raises_ends_its_requests_and_refuses_new_ones():
    graph, first, second = FakeGraph(), Waiting(), Waiting()
    graph.engine.start()
    graph.engine.submit(text_request("a"), first)
    graph.writer.broken = RuntimeError("the device fell off the bus")
    graph.engine.submit(text_request("b"), second)
    for sink in (first, second):
        assert sink.last.wait(PATIENCE_SECONDS)
        assert isinstance(sink.outputs[-1], RequestFailed)
        assert "RuntimeError: the device fell off the bus" in sink.failure
    graph.engine.close()


def test_a_loop_that_fails_fails_its_requests_before_the_close(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> bool:
        raise RuntimeError("out of order")

    graph, active, later = FakeGraph(), Waiting(), Waiting()
    graph.engine.submit(text_request("active"), active)
    graph.engine.tick()
    monkeypatch.setattr(graph.engine, "tick", fail)
    graph.engine.start()
    assert active.last.wait(PATIENCE_SECONDS)
    graph.engine.submit(text_request("later"), later)
    assert later.last.wait(PATIENCE_SECONDS)
    assert "engine" in active.failure
    assert active.failure == later.failure
    assert "failed while running its loop: RuntimeError: out of order" in active.failure
    graph.engine.close()


class Breaking(FakeWorker):
    """Raises in its first tick. ticks: how often it was given a turn."""

    def __init__(self) -> None:
        super().__init__()
        self.ticks = 0

    def tick(self) -> bool:
        self.ticks += 1
        raise RuntimeError("out of order")


class CountedCommandQueue(LocalCommandQueue):
    """waits: how often the loop waited and went on."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0

    def wait(self, seconds: float | None = None) -> None:
        super().wait(seconds)
        self.waits += 1


@pytest.mark.plants_faults
def test_a_stage_that_raised_never_runs_again_and_the_engine_sleeps():
    graph, broken, command_queue = FakeGraph(), Breaking(), CountedCommandQueue()
    graph.workers["writer"] = broken
    vars(graph.engine)["_workers"] = graph.workers
    graph.orchestrator.mailboxes["writer"] = Mailbox.of(broken)
    graph.engine._command_queue = command_queue
    graph.engine.start()
    for number in range(3):
        sink = Waiting()
        graph.engine.submit(text_request(str(number)), sink)
        assert sink.last.wait(PATIENCE_SECONDS)
        assert isinstance(sink.outputs[-1], RequestFailed)
    graph.engine.close()
    assert broken.ticks == 1
    assert command_queue.waits <= 3 + 2, "it wakes for a request and for the close, not in between"


class FlushedCommandQueue(LocalCommandQueue):
    """flushed: whether `flush` was called since the last `take`. waited: that, of each `wait` that began."""

    def __init__(self) -> None:
        super().__init__()
        self.flushed = False
        self.waited: list[bool] = []
        self.waits = threading.Semaphore(0)

    def take(self) -> Sequence[EngineCommand]:
        self.flushed = False
        return super().take()

    def flush(self) -> None:
        self.flushed = True

    def wait(self, seconds: float | None = None) -> None:
        self.waited.append(self.flushed)
        self.waits.release()
        super().wait(seconds)


def test_outputs_are_sent_before_the_loop_waits():
    graph, sink, command_queue = FakeGraph(), Waiting(), FlushedCommandQueue()
    graph.writer.answer = host(1)
    graph.engine._command_queue = command_queue
    graph.engine.start()
    assert command_queue.waits.acquire(timeout=PATIENCE_SECONDS)
    graph.engine.submit(text_request("r"), sink)
    assert command_queue.waits.acquire(timeout=PATIENCE_SECONDS)
    graph.engine.close()
    assert sink.finished
    assert all(command_queue.waited)


class RestingCommandQueue(LocalCommandQueue):
    """rests: one for each `wait` with a limit. sleeps: one for each without."""

    def __init__(self) -> None:
        super().__init__()
        self.rests, self.sleeps = threading.Semaphore(0), threading.Semaphore(0)

    def wait(self, seconds: float | None = None) -> None:
        (self.sleeps if seconds is None else self.rests).release()
        super().wait(seconds)


def test_an_engine_that_only_waits_for_steps_of_others_rarely_looks():
    """On the CPU a rank with the first layers does for a minute, since gloo does not report arrivals."""
    graph, sink, command_queue = FakeGraph(), Waiting(), RestingCommandQueue()
    graph.writer.answer = host(1)
    graph.engine._cut, graph.engine._command_queue = CutStages({"seer": silent_ranks(1, RankLayout(2))}), command_queue
    graph.seer.held.add("a step")
    graph.engine.start()
    assert command_queue.rests.acquire(timeout=PATIENCE_SECONDS)
    graph.engine.submit(text_request("r"), sink)
    assert sink.last.wait(PATIENCE_SECONDS), "a command ends the rest"
    assert not command_queue.sleeps.acquire(blocking=False)
    graph.seer.held.clear()
    assert command_queue.sleeps.acquire(timeout=PATIENCE_SECONDS)
    graph.engine.close()


def test_idle_means_no_command_no_request_and_nothing_held():
    graph = FakeGraph()
    sink, idle = Recorder(), partial(getattr, graph.engine, "idle")
    assert idle()
    graph.engine.submit(text_request("r"), sink)
    assert not idle(), "a command is waiting"
    graph.settle()
    assert not idle(), "a request is under way"
    graph.writer.done("r")
    graph.seer.held.add("left over")
    graph.settle()
    assert sink.finished
    assert not idle(), "a stage holds something"
    graph.seer.held.clear()
    assert idle()


def test_usage_is_by_stage():
    graph = FakeGraph()
    graph.submit("r", "text", "audio")
    assert graph.engine.usage() == {name: {"requests": 1} for name in ("seer", "writer", "speaker")}


def test_tick_returns_whether_anything_happened():
    graph = FakeGraph()
    assert not graph.engine.tick()
    graph.writer.produce("nobody", lent(1))
    assert graph.engine.tick()
    assert not graph.engine.tick()


class PolledWorker(FakeWorker):
    """given: a request, to which its next poll gives a payload. polls: numbers of inputs that its polls found."""

    def __init__(self) -> None:
        super().__init__()
        self.given: str | None = None
        self.polls: list[int] = []

    def poll(self) -> bool:
        self.polls.append(sum(isinstance(message, Feed) for message in self.inbox))
        if self.given is None:
            return False
        self.produce(self.given, lent(1))
        self.given = None
        return True


def polled_graph() -> tuple[FakeGraph, PolledWorker, PolledWorker]:
    """The graph, with a writer and a speaker that are polled."""
    graph, writer, speaker = FakeGraph(), PolledWorker(), PolledWorker()
    graph.workers |= {"writer": writer, "speaker": speaker}
    vars(graph.orchestrator)["_workers"] = vars(graph.engine)["_workers"] = graph.workers
    vars(graph.orchestrator._opener)["_workers"] = graph.workers
    graph.orchestrator.mailboxes.update({"writer": Mailbox.of(writer), "speaker": Mailbox.of(speaker)})
    return graph, writer, speaker


def test_outputs_of_a_poll_are_delivered_before_the_consumer_polls():
    graph, writer, speaker = polled_graph()
    graph.submit("r", "audio")
    speaker.polls.clear()
    writer.given = "r"
    assert graph.engine.tick()
    assert speaker.polls[0] == 1


def test_outputs_of_a_tick_are_delivered_before_the_next_stage_ticks():
    graph, writer, speaker = polled_graph()
    graph.submit("r", "audio", seer=False)
    speaker.polls.clear()

    def tick() -> bool:
        if not speaker.polls[1:]:
            writer.produce("r", lent(2))
            return True
        return False

    vars(writer)["tick"] = tick
    assert graph.engine.tick()
    assert speaker.polls == [0, 1]


def test_an_idle_round_polls_and_ticks_each_stage_once():
    graph, _, speaker = polled_graph()
    graph.submit("r", "audio")
    speaker.polls.clear()
    assert not graph.engine.tick()
    assert speaker.polls == [0]


@pytest.mark.plants_faults
def test_a_poll_that_raises_closes_its_stage_alone():
    graph, writer, speaker = polled_graph()
    audio, text = graph.submit("a", "audio"), graph.submit("b", "text")

    def poll() -> bool:
        raise RuntimeError("out of order")

    vars(speaker)["poll"] = poll
    graph.settle()
    assert "RuntimeError: out of order" in audio.failure
    assert not text.finished
    writer.done("b")
    graph.settle()
    assert text.succeeded


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("max_active_requests", 1),
        ("max_waiting_requests", 0),
        ("max_waiting_bytes", 1),
        ("max_unread_bytes", 1),
        ("memory_bytes", 1),
    ],
)
def test_limits_that_let_nothing_run_are_refused(name: str, least: int):
    options: Callable[..., EngineOptions] = EngineOptions
    options(**{name: least})
    with pytest.raises(ValueError, match=f"{name} must be at least {least}"):
        options(**{name: least - 1})


class Panic(BaseException):
    """As of a library in another language."""


def closes_by(graph: FakeGraph, worker: FakeWorker, close: Callable[[], None]) -> None:
    worker.close = close  # type: ignore[method-assign]
    graph.engine._closing_steps = graph.engine._steps_to_close()


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
    with caplog.at_level(logging.ERROR), pytest.raises(StageError, match=r"'seer' failed while closing: .*first"):
        graph.engine.close()
    assert graph.speaker.closed
    assert [connector.closed for connector in graph.connectors.values()] == [["receiver", "sender"]] * 2
    (logged,) = (record.exc_info[1] for record in caplog.records if record.exc_info)
    assert str(logged).startswith("stage 'writer' failed while closing: ValueError: second")
    graph.engine.close()
    assert [connector.closed for connector in graph.connectors.values()] == [["receiver", "sender"]] * 2


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
    with pytest.raises(StageError, match="'seer' failed while closing: RuntimeError: first"):
        graph.engine.close()
    assert graph.writer.closed
    assert graph.speaker.closed


@pytest.mark.plants_faults
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
            if sink.finished:
                break
            graph.engine._thread.join(0.01)
        assert "Mute: without a message" in sink.failure
    finally:
        graph.engine.close()
