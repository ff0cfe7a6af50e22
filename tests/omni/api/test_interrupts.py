"""Ctrl-C at any point of the user's calls: it takes effect, and no resource leaks."""

import gc
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from omni.api.serial_executor import SerialExecutor
from omni.errors import StageError
from tests.support.echo_family import GATES, eventually
from tests.support.echo_omni import ENDLESS, assert_nothing_held, opened
from tests.support.fake_graph import FakeGraph
from tests.support.interrupts import Interrupter, everywhere
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiers import SLOW, few

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("no_thread_stays")]

PLACES = ("/omni/api/", "/omni/engine/engine.py", "/omni/utils/closing.py")


def test_while_a_request_is_made_and_read(model: Path) -> None:
    with opened(model) as omni:

        def ask() -> None:
            stream = omni.generate("abc", sampling=ENDLESS)
            next(stream)
            stream.close()

        def after(where: str) -> None:
            assert_nothing_held(omni, where)

        places = everywhere(ask, after, PLACES)
        assert places > 100, "it was interrupted in all of it"
        assert omni.generate("still there", stream=False).text == "still there"


def test_while_whole_results_are_waited_for(model: Path) -> None:
    with opened(model) as omni:
        everywhere(
            lambda: omni.generate(["ab", "c"], n=2, stream=False),
            lambda where: assert_nothing_held(omni, where),
            PLACES,
            stride=11,
        )


@pytest.mark.parametrize("engine", few(1, ["thread", "process"], SLOW))
def test_while_a_model_is_started(model: Path, engine: str) -> None:
    """After it is loaded: code that reads files holds only memory, or ends its processes."""
    before = set(threading.enumerate())

    def start() -> None:
        opened(model, **{"engine.process": engine}).close()

    def after(where: str) -> None:
        gc.collect()
        assert eventually(lambda: set(threading.enumerate()) <= before), where

    places = (
        "/omni/api/session.py",
        "/omni/api/stream.py",
        "/omni/api/client.py",
        "/omni/api/serial_executor.py",
        "/engine/engine.py",
        "/omni/utils/closing.py",
    )
    assert everywhere(start, after, places, stride=11) > 5


def test_before_the_thread_that_closes_a_model_is_started(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(threading.enumerate())

    def interrupted(executor: SerialExecutor) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SerialExecutor, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        opened(model, **{"engine.process": "process"})
    assert eventually(lambda: set(threading.enumerate()) <= before)


def test_while_it_is_closed_and_closed_again(model: Path) -> None:
    for at in range(200):
        omni = opened(model)
        stream = omni.generate("abc", sampling=ENDLESS)
        interrupter = Interrupter(at, PLACES)
        interrupter.run(omni.close)
        omni.close()
        assert omni.idle, interrupter.where
        with pytest.raises(StageError, match="closed"):
            list(stream)
        if not interrupter.happened:
            return
    raise AssertionError("it never comes to its end")


def test_ctrl_c_interrupts_a_close_that_waits_and_the_close_continues(model: Path) -> None:
    GATES["held"].clear()
    omni = opened(model)
    engine = omni._client.engine
    gate, real = threading.Event(), engine.close

    def slow() -> None:
        gate.wait(PATIENCE_SECONDS)
        real()

    engine.close = slow  # type: ignore[method-assign]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            omni.close()
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
    closer = threading.Thread(target=omni.close)
    closer.start()
    closer.join(0.1)
    assert closer.is_alive(), "the second close waits for what the first began"
    gate.set()
    closer.join(PATIENCE_SECONDS)
    assert not closer.is_alive()
    assert omni.idle


def test_a_real_signal_at_any_moment(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals arrive while lines run, not before them: seeded delays, as many as fit a second or two. Python drops one that comes
    in a finalizer or in a callback of its garbage collector."""
    dropped: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: dropped.append(unraisable.exc_type))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    main = threading.main_thread().ident
    assert main is not None
    interrupted = 0
    try:
        with opened(model) as omni:
            for delay in range(30):
                timer = threading.Timer(delay * 2e-4, signal.pthread_kill, (main, signal.SIGINT))
                try:
                    timer.start()
                    omni.generate("abc" * 20, stream=False)
                    time.sleep(0.5)
                except KeyboardInterrupt:
                    interrupted += 1
                timer.join()
            assert interrupted + len(dropped) == 30
            assert set(dropped) <= {KeyboardInterrupt}
            assert interrupted > 20
            assert_nothing_held(omni)
            assert omni.generate("still there", stream=False).text == "still there"
    finally:
        signal.signal(signal.SIGINT, before)


def test_while_an_engine_is_closed_by_its_own() -> None:
    """Without an executor between: a close that was interrupted is gone on with by the next."""
    for at in range(300):
        graph = FakeGraph()
        graph.engine.start()
        interrupter = Interrupter(at, ("/omni/engine/engine.py", "/omni/utils/closing.py"))
        interrupter.run(graph.engine.close)
        graph.engine.close()
        assert graph.engine.idle
        assert all({*connector.closed} == {"receiver", "sender"} for connector in graph.connectors.values()), (
            interrupter.where
        )
        if not interrupter.happened:
            assert at > 20
            return
    raise AssertionError("it never comes to its end")
