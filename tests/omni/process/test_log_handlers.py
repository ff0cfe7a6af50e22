"""Log handlers may ask a model: no lock is held that its listeners take."""

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from omni import Omni, StageError
from omni.process.group import EngineGroup
from omni.process.logs import show
from omni.process.messages import LogRecordOut
from tests.omni.process.engines import SINGER, WRITER, alive, group_of, opened_apart, pids_of
from tests.support.echo_family import EXPLODE, eventually

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
]


class LockFinder(logging.Handler):
    """held: the messages of threads that held a lock of the group or of a request."""

    def __init__(self, group: EngineGroup) -> None:
        super().__init__()
        self._group = group
        self.messages: list[str] = []
        self.held: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        locks = [self._group._supervisor.lock, *(tracked.lock for tracked in list(self._group._tracked.values()))]
        # Another thread may hold one at this moment. This one must not.
        if any(lock._is_owned() for lock in locks):  # type: ignore[attr-defined]
            self.held.append(record.getMessage())


@contextmanager
def finding(omni: Omni) -> Iterator[LockFinder]:
    finder, logger = LockFinder(group_of(omni)), logging.getLogger("omni.process")
    logger.addHandler(finder)
    try:
        yield finder
    finally:
        logger.removeHandler(finder)


def test_a_request_that_starts_again_is_logged_without_a_lock(model: Path):
    with opened_apart(model) as omni, finding(omni) as finder:
        pid = pids_of(omni)[WRITER]
        os.kill(pid, signal.SIGSTOP)
        stream = omni.generate("hello", modalities=("text",))
        assert eventually(lambda: bool(group_of(omni)._tracked))
        os.kill(pid, signal.SIGKILL)
        assert "".join(output.text for output in stream) == "hello"
        assert any("starts again" in message for message in finder.messages)
        assert finder.held == []


def test_an_engine_that_is_given_up_is_logged_without_a_lock(model: Path):
    with opened_apart(model, {"engine.restarts": 0}) as omni, finding(omni) as finder:
        os.kill(pids_of(omni)[WRITER], signal.SIGKILL)
        assert eventually(lambda: any("load the model again" in message for message in finder.messages))
        with pytest.raises(StageError, match="load the model again"):
            omni.generate("hello", stream=False)
        assert finder.held == []


class Raising(logging.Handler):
    """messages: of the records that it got, before it raised."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        raise RuntimeError("the handler is broken")


@contextmanager
def raising() -> Iterator[Raising]:
    handler, logger = Raising(), logging.getLogger("omni")
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)


def test_requests_start_again_although_a_handler_raises(model: Path, capsys: pytest.CaptureFixture[str]):
    with opened_apart(model) as omni, raising() as handler:
        pid = pids_of(omni)[WRITER]
        os.kill(pid, signal.SIGSTOP)
        streams = [omni.generate(text, modalities=("text",)) for text in ("one", "two", "three")]
        assert eventually(lambda: len(group_of(omni)._tracked) == 3)
        os.kill(pid, signal.SIGKILL)
        assert ["".join(output.text for output in stream) for stream in streams] == ["one", "two", "three"]
        assert sum("starts again" in message for message in handler.messages) == 3
    assert "RuntimeError: the handler is broken" in capsys.readouterr().err


def test_a_record_of_an_engine_is_shown_although_a_handler_raises():
    """The thread that shows it takes the outputs of all requests."""
    with raising() as handler:
        show(LogRecordOut("omni.tests", logging.ERROR, "100% of it"))
    assert handler.messages == ["100% of it"]


def test_a_record_of_an_engine_leaves_no_process_although_a_handler_raises(model: Path):
    with opened_apart(model) as omni, raising() as handler:
        before = dict(pids_of(omni))
        with pytest.raises(StageError):
            omni.generate(f"x{EXPLODE}y", stream=False)
        assert eventually(lambda: any("is closed" in message for message in handler.messages))
        assert pids_of(omni)[SINGER] == before[SINGER]
        ever = {*before.values(), *pids_of(omni).values()}
    assert not any(map(alive, ever)), "no process is left"
