"""Restarts of engines that end: how often, after which waits, and what waits for them."""

import gc
import logging
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from omni import StageError
from omni.errors import LostPeerError
from omni.process.supervisor import restart_delay
from tests.omni.process.engines import (
    SINGER,
    WRITER,
    alive,
    assert_answers,
    children,
    group_of,
    kill,
    opened_apart,
    pids_of,
)
from tests.support.echo_family import BREAK_LOOP, echo_model, eventually
from tests.support.echo_omni import assert_nothing_held
from tests.support.patience import PATIENCE_SECONDS
from tests.support.resources import open_files
from tests.support.tiers import SLOW, few

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
]


def test_a_loop_that_fails_again_and_again_ends_the_restarts(model: Path):
    """A request without outputs starts again, and the loop fails again."""
    with opened_apart(model, {"engine.restarts": 1}) as omni:
        with pytest.raises(LostPeerError, match="boom"):
            list(omni.generate(BREAK_LOOP))
        with pytest.raises(StageError, match=r"'writer' .*boom; it was started again 1 times; load the model again"):
            omni.generate("abc", stream=False)


def test_a_request_that_always_ends_the_process_leaves_a_restart(model: Path):
    """For the requests of others."""
    with opened_apart(model, {"engine.restarts": 2, "engine.restart_seconds": 0.1}) as omni:
        with pytest.raises(LostPeerError, match="boom"):
            list(omni.generate(BREAK_LOOP))
        assert_answers(omni)


def test_a_request_that_waits_for_a_restart_can_be_given_up(model: Path):
    with opened_apart(model, {"engine.restart_seconds": PATIENCE_SECONDS}) as omni:
        pid = pids_of(omni)[SINGER]
        kill(omni, SINGER)
        assert eventually(lambda: not group_of(omni)._supervisor.by_place[SINGER].up)
        stream = omni.generate("abc")
        assert eventually(lambda: len(group_of(omni)._waiting) == 1)
        stream.close()
        assert_nothing_held(omni)
        stream = omni.generate("abc")
        assert eventually(lambda: len(group_of(omni)._waiting) == 1)
    with pytest.raises(StageError, match="closed"):
        list(stream)
    assert not alive(pid)


def test_restarts_wait_longer_each_time_and_end(model: Path, caplog: pytest.LogCaptureFixture):
    with (
        caplog.at_level(logging.WARNING),
        opened_apart(model, {"engine.restarts": 2, "engine.restart_seconds": 0.1}) as omni,
    ):
        for _ in range(2):
            kill(omni, SINGER)
            assert_answers(omni)
        kill(omni, SINGER)
        for _ in range(2):
            with pytest.raises(
                StageError, match=r"singer.*SIGKILL; it was started again 2 times; load the model again"
            ):
                omni.generate("abc", stream=False)
        assert omni.generate("abc", stream=False, modalities=("text",)).text == "abc"
    waits = [record.getMessage() for record in caplog.records if "started again in" in record.getMessage()]
    assert [wait.rpartition(" in ")[2] for wait in waits] == ["0.1 s", "0.2 s"]


def test_a_place_that_cannot_start_again_fails_its_requests(tmp_path: Path):
    before = children()
    folder = echo_model(tmp_path)
    with opened_apart(folder, {"engine.restarts": 2}) as omni:
        shutil.rmtree(folder)
        kill(omni, SINGER)
        with pytest.raises(StageError, match=r"singer.*(config\.json|No such file).*started again 2 times"):
            omni.generate("abc", stream=False)
        assert omni.generate("abc", stream=False, modalities=("text",)).text == "abc"
    assert children() == before


def test_a_log_handler_that_raises_delays_no_restart(model: Path):
    class Broken(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            messages.append(record.getMessage())
            raise OSError("no space left on the device")

    messages: list[str] = []
    handler, logger = Broken(), logging.getLogger("omni.process.supervisor")
    logger.addHandler(handler)
    try:
        with opened_apart(model, {"engine.restarts": 1}) as omni:
            kill(omni, SINGER)
            assert_answers(omni)
            kill(omni, SINGER)
            with pytest.raises(StageError, match="load the model again"):
                omni.generate("abc", stream=False)
    finally:
        logger.removeHandler(handler)
    ends = [message.rpartition("; ")[2] for message in messages]
    # Who notices the end first is open: the other engine or the user's process.
    assert [end for end in ends if end != "its process is started again"] == [
        "it is started again in 0.0 s",
        "load the model again",
    ]


def test_paths_of_settings_are_those_of_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """After the program has changed its folder, and that one was removed."""
    folder, other = echo_model(tmp_path), tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(folder.parent)
    with opened_apart(Path(folder.name)) as omni:
        monkeypatch.chdir(other)
        kill(omni, SINGER)
        assert_answers(omni)
        other.rmdir()
        kill(omni, SINGER)
        assert_answers(omni)
        monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("seconds", "restarts"), [(0.0, 5000), (1e300, 4)])
def test_every_wait_is_one_that_a_thread_can_wait(seconds: float, restarts: int):
    closing = threading.Event()
    closing.set()
    assert closing.wait(restart_delay(seconds, restarts))


@pytest.mark.parametrize("delay", few(1, (0.3, 0.0, 0.6, 1.2, 2.4), SLOW))
def test_closing_does_not_wait_for_an_engine_that_starts(model: Path, delay: float):
    gc.collect()
    before = children(), open_files()
    omni = opened_apart(model)
    kill(omni, SINGER)
    time.sleep(delay)
    omni.close()
    del omni
    gc.collect()
    assert eventually(lambda: (children(), open_files()) == before)


def test_many_waiting_requests_fail_with_their_engine(model: Path):
    """However many: none of them fails inside of another."""
    with opened_apart(model, {"engine.restarts": 0, "engine.max_active_requests": 4}) as omni:
        os.kill(pids_of(omni)[WRITER], signal.SIGSTOP)
        streams = [omni.generate("abc") for _ in range(1500)]
        assert eventually(lambda: group_of(omni)._supervisor.by_place[SINGER].engine.requests == 4)
        kill(omni, SINGER)
        os.kill(pids_of(omni)[WRITER], signal.SIGCONT)
        for stream in streams:
            with pytest.raises(StageError, match="SIGKILL"):
                list(stream)
        assert_nothing_held(omni)
