"""A message that cannot pass between the processes fails its own request, and no other."""

import gc
import logging
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from omni import Omni, OmniError, StageError
from omni.ipc import Undecodable
from omni.process.messages import Answer, EngineState, GetState
from tests.omni.process.engines import group_of
from tests.omni.process.odd_plugin import INPUTS, OUTPUTS, odd_model, odd_plugins
from tests.support.echo_omni import ENDLESS, assert_nothing_held

pytestmark = [pytest.mark.thorough, pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")]


@pytest.fixture(scope="module")
def omni(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Omni]:
    folder = odd_model(tmp_path_factory.mktemp("odd"))
    logger = logging.getLogger("tests.omni.process.odd_plugin")
    logger.setLevel(logging.INFO)
    with Omni(folder, device="cpu", plugins=odd_plugins(), overrides={"engine.process": "process"}) as omni:
        yield omni
        assert_nothing_held(omni)
    logger.setLevel(logging.NOTSET)


@pytest.mark.parametrize("prompt", [*INPUTS, *OUTPUTS])
def test_an_unsendable_value_fails_its_request_alone(omni: Omni, prompt: str):
    beside = omni.generate("abc", sampling=ENDLESS)
    next(beside)
    with pytest.raises(OmniError, match=r"Local|Expected `str`, got `int`|surrogates"):
        omni.generate(prompt, stream=False)
    next(beside)
    beside.close()
    assert omni.generate("after", stream=False).text == "after"


def test_every_log_record_arrives(omni: Omni, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO):
        assert omni.generate("log", stream=False).text == "log"
        assert_nothing_held(omni)
    messages = [record.getMessage() for record in caplog.records if record.name.endswith("odd_plugin")]
    assert messages == [*(f"record {number}" for number in range(100)), r"no Unicode: \udcff"]


def test_asking_in_a_log_handler_does_not_hang(omni: Omni):
    asked: list[object] = []

    class Asking(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            asked.append(omni.usage())

    handler, logger = Asking(), logging.getLogger("tests.omni.process.odd_plugin")
    logger.addHandler(handler)
    try:
        omni.generate("log", stream=False)
        assert_nothing_held(omni)
    finally:
        logger.removeHandler(handler)
    assert asked


@pytest.mark.parametrize("process", ["thread", "process"])
def test_errors_keep_no_frame_of_the_caller(tmp_path: Path, process: str):
    class Local:
        pass

    overrides = {"engine.process": process}
    with Omni(odd_model(tmp_path), device="cpu", plugins=odd_plugins(), overrides=overrides) as omni:

        def ask() -> "weakref.ref[Local]":
            local = Local()
            with pytest.raises(OmniError):
                list(omni.generate("a wrong field in"))
            return weakref.ref(local)

        kept = [ask() for _ in range(3)]
    gc.collect()
    assert [each() for each in kept] == [None, None, None]


def test_signals_and_odd_paths_do_not_disturb_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The engine's process has the user's path, except for entries that are not text, and leaves signals to the user's process."""
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])
    (tmp_path / "json.py").write_text("raise SystemExit('not this one')\n")
    monkeypatch.chdir(tmp_path)
    pids: list[int] = []
    real = subprocess.Popen

    def start(*arguments: object, **options: object) -> "subprocess.Popen[bytes]":
        process: subprocess.Popen[bytes] = real(*arguments, **options)  # type: ignore[call-overload]
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process.send_signal(each)
        pids.append(process.pid)
        return process

    monkeypatch.setattr(subprocess, "Popen", start)
    with Omni(
        odd_model(tmp_path), device="cpu", plugins=odd_plugins(), overrides={"engine.process": "process"}
    ) as omni:
        assert pids
        assert omni.generate("fine", stream=False).text == "fine"


def test_a_process_that_cannot_be_started_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    with pytest.raises((FileNotFoundError, StageError)):
        Omni(odd_model(tmp_path), device="cpu", plugins=odd_plugins(), overrides={"engine.process": "process"})


def test_a_process_that_ends_at_once_is_an_error_with_its_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("omni.process.child._BOOT", "raise SystemExit(3)")
    with pytest.raises(StageError, match=r"failed while starting: its process \d+ exited with status 3"):
        Omni(odd_model(tmp_path), device="cpu", plugins=odd_plugins(), overrides={"engine.process": "process"})


def test_answers_beside_outputs_that_are_lost_arrive(omni: Omni, monkeypatch: pytest.MonkeyPatch):
    """As when no descriptor is free for the memory of the outputs."""
    engine = next(iter(group_of(omni)._supervisor.by_place.values())).engine
    beside = omni.generate("abc", sampling=ENDLESS)
    next(beside)
    with monkeypatch.context() as unsent:
        unsent.setattr(engine._queries, "_send", lambda query, extra: None)
        number, answer = engine._queries.post(GetState)
    request_id = next(iter(engine._open_requests._sinks))
    state = msgspec.to_builtins(EngineState({"writer": {"requests": 1}}, {}, False))
    turn = [
        "Turn",
        [["OtherOut", request_id, "text", None, {}]],
        [[number, state, None]],
        [["odd", logging.INFO, "log"]],
    ]
    engine._fail_lost(Undecodable(turn, OSError("no descriptor")))
    assert answer.result(0) == Answer(number, EngineState({"writer": {"requests": 1}}, {}, False))
    with pytest.raises(StageError, match=r"taking its outputs.*no descriptor"):
        list(beside)
