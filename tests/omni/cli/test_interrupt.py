"""Ctrl-C and SIGTERM, at any moment: they take effect, with one line and without a traceback."""

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omni.cli import app
from tests.omni.cli.echo_program import environment, program, wait_for_handlers
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiers import SLOW, few

pytestmark = pytest.mark.thorough

Process = subprocess.Popen[bytes]
Start = Callable[..., Process]
ENDLESS = ("--max-tokens", "1000000000", "--device", "cpu")
RAISE = "import signal; signal.raise_signal(signal.SIGINT)\n"
STUCK = RAISE + "import time\nwhile True: time.sleep(1)\n"
SWALLOWED = """
import contextlib, time
with contextlib.suppress(BaseException):
    import signal
    signal.raise_signal(signal.SIGINT)
    time.sleep(60)
while True: time.sleep(1)
"""
FINALIZER = """
import signal, time
class Last:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)
        time.sleep(60)
Last()
while True: time.sleep(1)
"""
DEADLOCK = """
import ctypes, os, signal, threading
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
lock = ctypes.create_string_buffer(128)
for _ in range(2): ctypes.CDLL(None).pthread_mutex_lock(lock)
"""
"""The main thread waits in C, where no handler of Python's is run."""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a process, which has ended with all its children after the test."""
    with ExitStack() as processes:

        def start(command: list[str], *arguments: str, out: int = subprocess.PIPE) -> Process:
            process = subprocess.Popen([*command, *arguments], stdout=out, stderr=out, cwd=tmp_path, env=environment())
            processes.enter_context(process)  # which closes its pipes, and waits
            processes.callback(process.kill)
            return process

        yield start


def assert_begins(process: Process, text: bytes) -> None:
    assert process.stdout is not None
    assert process.stdout.read(len(text)) == text


def end(process: Process, code: int = 130, line: bytes = b"interrupted\n") -> None:
    _, stderr = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, stderr) == (code, line)


@pytest.mark.parametrize("delay", few(2, [0, 0.6, 1.8, 0.1, 0.02, 0.05, 0.2, 0.4, 0.9, 1.3, 2.4, 3.2], SLOW))
def test_at_any_moment(start: Start, tmp_path: Path, model: str, delay: float) -> None:
    process = start(program(), "run", model, "hello", *ENDLESS)
    wait_for_handlers(process, signal.SIGTERM)
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    end(process)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["echo"]


MODULES = [
    *("omni.cli.interrupt", "tests.support.echo_plugin", "omni.cli.commands", "torch"),
    *("tests.support.echo_family", "omni.cli.streams", "typer", "numpy"),
]


@pytest.mark.parametrize("module", few(2, MODULES, SLOW))
def test_while_a_module_is_imported(start: Start, model: str, module: str) -> None:
    """Also where an import is caught: a plugin's, which would count as broken."""
    process = start(program(at=module, code=RAISE), "run", model, "hello", *ENDLESS)
    end(process)


@pytest.mark.parametrize("code", [STUCK, SWALLOWED, DEADLOCK], ids=["waits", "catches everything", "waits in C"])
def test_a_start_that_stalls_is_ended(start: Start, code: str) -> None:
    end(start(program(at="omni.cli.run", code=code), "run", "model", "hello"))


def test_while_an_answer_comes_in_no_wav_is_written(start: Start, tmp_path: Path, model: str) -> None:
    (tmp_path / "a.wav").write_bytes(b"before")
    process = start(program(), "run", model, "hello", "--out", "a.wav", *ENDLESS)
    assert_begins(process, b"hello")
    process.send_signal(signal.SIGINT)
    end(process)
    assert {path.name for path in tmp_path.iterdir()} == {"echo", "a.wav"}
    assert (tmp_path / "a.wav").read_bytes() == b"before"


def test_sigterm_ends_the_command_too(start: Start, model: str) -> None:
    process = start(program(), "run", model, "hello", *ENDLESS)
    assert_begins(process, b"hello")
    process.send_signal(signal.SIGTERM)
    end(process, 143, b"terminated\n")


CLOSES_NEVER = """
import omni.api.client, time
def close(self):
    print("closing", flush=True)
    while True: time.sleep(1)
omni.api.client.Client.close = close
"""


def test_a_second_one_waits_for_no_closing(start: Start, model: str) -> None:
    process = start(program(at="omni.cli.run", code=CLOSES_NEVER), "run", model, "x", *ENDLESS)
    assert_begins(process, b"xx")
    assert process.stdout is not None
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline().endswith(b"closing\n")
    process.send_signal(signal.SIGINT)
    end(process)


SHORT_LIMIT = "import omni.cli.interrupt\nomni.cli.interrupt.LIMIT = 0.5\n"
STUB = """
import sys, types
def answer(arguments):
    from omni.cli.interrupt import unwinding
    with unwinding():
        exec({code!r}, {{}})
sys.modules["omni.cli.run"] = types.SimpleNamespace(RunArguments=dict, answer=answer)
"""
"""An `omni run` without a model to load."""


@pytest.mark.parametrize(
    "code",
    [SHORT_LIMIT + SWALLOWED, SHORT_LIMIT + DEADLOCK, FINALIZER],
    ids=["it is swallowed", "it waits in C", "a finalizer swallows it"],
)
def test_code_that_withstands_the_interrupt_is_ended(start: Start, code: str) -> None:
    end(start(program(before=STUB.format(code=code)), "run", "model", "hello"))


def test_an_interrupt_turned_into_another_error_ends_the_program(start: Start) -> None:
    turned = f"try:\n    {RAISE}except KeyboardInterrupt as error: raise ValueError from error\n"
    end(start(program(before=STUB.format(code=turned)), "run", "model", "hello"))


def test_a_closing_that_does_not_end_has_its_limit(start: Start, model: str) -> None:
    process = start(program(at="omni.cli.run", code=SHORT_LIMIT + CLOSES_NEVER), "run", model, "x", *ENDLESS)
    assert_begins(process, b"xx")
    process.send_signal(signal.SIGINT)
    end(process)


def test_a_command_ends_though_its_reader_stopped_reading(start: Start, model: str) -> None:
    """Its pipe is full: the command waits where it writes."""
    reads, writes = os.pipe()
    with open(reads, "rb"):
        while select.select([], [writes], [], 0)[1]:
            os.write(writes, bytes(4096))
        process = start(program(), "run", model, "x" * 1000, *ENDLESS, out=writes)
        os.close(writes)
        wait_for_handlers(process, signal.SIGTERM)
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 130


@pytest.mark.parametrize("last", ["atexit.register(interrupt)", "threading.Thread(target=interrupt_later).start()"])
def test_while_the_interpreter_ends(start: Start, last: str) -> None:
    code = f"""
import atexit, os, signal, threading, time
def interrupt():
    signal.raise_signal(signal.SIGINT)
    time.sleep(60)
def interrupt_later():
    threading.main_thread().join()
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
{last}
"""
    process = start(program(before=code), "--version")
    end(process)


def test_a_signal_that_is_ignored_stays_ignored(start: Start) -> None:
    """As `nohup` and shells that run something in the background have it."""
    before = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    stub = STUB.format(code=RAISE + "print('hello')")
    process = start(program(before=before + stub), "run", "model", "hello")
    assert process.communicate(timeout=PATIENCE_SECONDS) == (b"hello\n", b"")
    assert process.returncode == 0


def test_tiny_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(directory: Path, *, seed: int) -> None:
        (directory / "half").write_bytes(b"1")
        raise KeyboardInterrupt

    monkeypatch.setattr("omni.cli.tiny.locate", lambda path, field: stop)
    ran = CliRunner().invoke(app, ["tiny", str(tmp_path / "tiny"), "--family", "csm"])
    assert ran.exit_code == 130
    assert list(tmp_path.iterdir()) == []
