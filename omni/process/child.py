"""The operating system's process of an engine."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from omni.utils.log import safe_logger
from omni.utils.sockets import packet_pair

_log = safe_logger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""These signals may reach both processes. The user's process alone handles them, and the engine's process ends with it."""

_BOOT = (
    "import gc, signal\n"
    "gc.disable()\n"  # until `main`: imported objects are never freed
    f"for each in {[int(each) for each in _SIGNALS]}: signal.signal(each, signal.SIG_IGN)\n"
    "signal.pthread_sigmask(signal.SIG_SETMASK, [])\n"
    "import json, sys\n"
    "sys.path[:] = json.loads(sys.argv[3])\n"
    "from omni.utils.parent import exit_with\n"
    "exit_with(int(sys.argv[2]))\n"  # also while it imports
    "from omni.process.main import main\n"
    "main(int(sys.argv[1]), sys.argv[4:])\n"
)
_EXIT_SECONDS = 30.0
"""Seconds from a process's last message until it is killed."""


class EngineProcess:
    """Starts the process, and waits for its end in a thread: so it is reaped even without the object that started it, and its end
    closes the socket. (The other end alone does not: a process that this one forked may hold it.)

    Imports no torch: a model that surely needs a process starts it before torch is imported.
    """

    def __init__(self, model: str | None = None, family: str | None = None, folder: str | None = None) -> None:
        """model: a folder whose stages' code the process imports at once; None to import it when the model is loaded. family: as in
        `PipelineChoice`. folder: its working folder; None for that of this process. Raises OSError if it cannot be started."""
        self.socket, end = packet_pair()
        # The process exits when its channel ends. Ctrl-C may drop this object at any point before it is closed.
        weakref.finalize(self, self.socket.close).atexit = False
        self._started: Future[subprocess.Popen[bytes]] = Future()
        paths = [path for path in sys.path if isinstance(path, str)]  # Python ignores others too
        # -P: no folder of the user's comes before `sys.path` is theirs.
        command = [sys.executable, "-P", "-c", _BOOT, str(end.fileno()), str(os.getpid()), json.dumps(paths)]
        if model is not None:
            command += [model, *([family] if family is not None else [])]
        arguments = (command, _start_folder(folder), end, weakref.ref(self.socket), self._started)
        self._thread = threading.Thread(target=_run, args=arguments, name="omni-engine-process", daemon=True)
        self._thread.start()
        self._process = self._started.result()
        self.pid = self._process.pid

    @property
    def stopped(self) -> bool:
        """Whether it is stopped by a signal such as SIGSTOP, and was not continued. A stop by a debugger does not count."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        except OSError:  # it has ended
            return False

    def kill(self) -> None:
        self._process.kill()

    def discard(self) -> None:
        """Ends a process that no engine has taken, and waits for its end. Idempotent."""
        self.kill()
        self.end()
        self.socket.close()

    def end(self) -> int:
        """Waits for the end, for a while, then kills the process. Returns its status, as `subprocess` has it."""
        self._thread.join(_EXIT_SECONDS)
        if self._thread.is_alive():
            self.kill()
            _log.error("the engine's process %d did not exit and is killed", self.pid)
            self._thread.join()
        status = self._process.returncode
        assert status is not None
        return status

    def ended(self) -> str:
        """Waits as `end` does. Returns how it ended, to continue "its process"."""
        status = self.end()
        return f"was killed by {_signal_name(-status)}" if status < 0 else f"exited with status {status}"


def working_folder() -> str | None:
    """That of this process; None if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _start_folder(folder: str | None) -> str | None:
    """`cwd` of `Popen`, for a working folder. If that was removed, the process has the one of this process, and without that the
    root: libraries that it loads need one."""
    present = working_folder()
    if folder is not None and folder != present and os.path.isdir(folder):
        return folder
    return None if present is not None else "/"


def _run(
    command: list[str],
    folder: str | None,
    end: socket.socket,
    other: "weakref.ref[socket.socket]",
    started: "Future[subprocess.Popen[bytes]]",
) -> None:
    with end:
        try:
            # Until the process ignores them itself. It inherits this thread's mask.
            signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
            process = subprocess.Popen(command, pass_fds=[end.fileno()], stdin=subprocess.DEVNULL, cwd=folder)
        except BaseException as error:
            started.set_exception(error)
            return
    started.set_result(process)
    process.wait()
    opened = other()
    if opened is not None:
        with suppress(OSError):  # closed before
            opened.shutdown(socket.SHUT_RDWR)


def _signal_name(number: int) -> str:
    """The signal's name, for errors."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
