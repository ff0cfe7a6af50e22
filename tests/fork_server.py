"""Starts processes that run code of omni's with everything heavy imported already: forked from a process that has imported torch.

Most of the time of a test that starts an engine's process would be imports. What a forked process runs is the same: its code, its
arguments, its signals, its descriptors and its parent. Tests of the start itself, and processes that other processes start, are
started as users start them.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.support.patience import PATIENCE_SECONDS

_SET_CHILD_SUBREAPER = 36
"""Of prctl(2)."""
_MESSAGE_BYTES = 2**18
_DESCRIPTORS = 16
_HIGH = 512
"""Descriptors that are passed are moved here, before they get their own numbers."""
_OWN = frozenset({"PYTEST_CURRENT_TEST", "COLUMNS", "LINES"})
"""Variables that no import reads."""
_REAL = subprocess.Popen

_IMPORTED = ("omni.process.main", "omni_ar.kind", "omni_encoder.kind", "omni_vocoder.kind", "omni_qwen3_omni.frontend")
"""They import torch, Triton's and transformers' modules that an engine needs, and none that has a state of its own."""
_BOOT = (
    "import json, sys\n"
    "sys.path[:] = json.loads(sys.argv[2])\n"
    f"import {', '.join(_IMPORTED)}\n"
    "from tests.fork_server import serve\n"
    "serve(int(sys.argv[1]))\n"
)


class ForkServer:
    """Forks processes on demand. Any thread may use it. It ends with the process that started it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._executable, self._environment = sys.executable, _environment()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for size in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            self._socket.setsockopt(socket.SOL_SOCKET, size, _MESSAGE_BYTES)
        self._socket.settimeout(PATIENCE_SECONDS)
        paths = json.dumps([path for path in sys.path if isinstance(path, str)])
        with theirs:
            command = [sys.executable, "-P", "-c", _BOOT, str(theirs.fileno()), paths]
            self._process = _REAL(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)

    def popen(self, command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
        """As `subprocess.Popen`, for `python -P -c CODE ...` with `pass_fds`. A command, options or variables that differ from
        those of the server are started without it."""
        plain = [self._executable, "-P", "-c"]
        if (
            subprocess.Popen is not _REAL  # a test replaces it
            or [sys.executable, *command[:3]] != [self._executable, *plain]
            or {"cwd": None, **options, "pass_fds": None}
            != {"pass_fds": None, "stdin": subprocess.DEVNULL, "cwd": None}
            or _environment() != self._environment
        ):
            return subprocess.Popen(command, **options)
        return _Forked(self, command, options["pass_fds"])

    def fork(self, command: Sequence[str], descriptors: Sequence[int]) -> int:
        """Returns the id of a process that is a child of this one."""
        passed = [1, 2, *descriptors]
        request: dict[str, object] = {"code": command[3], "arguments": command[4:], "descriptors": passed}
        request |= {"folder": os.getcwd(), "environment": dict(os.environ), "parent": os.getpid()}
        data = json.dumps(request).encode("utf-8", "surrogateescape")
        assert len(data) < _MESSAGE_BYTES
        with self._lock, _Adopting():
            socket.send_fds(self._socket, [data], passed)
            return int(self._socket.recv(64))

    def close(self) -> None:
        self._socket.close()
        self._process.wait(PATIENCE_SECONDS)


class _Forked(subprocess.Popen[bytes]):
    """A child of this process that another forked."""

    def __init__(self, server: ForkServer, command: Sequence[str], descriptors: Sequence[int]) -> None:
        self._fork: Callable[[], int] = lambda: server.fork(command, descriptors)
        super().__init__(command)

    def _execute_child(self, *arguments: object) -> None:
        self.pid = self._fork()
        self._child_created = True


class _Adopting:
    """Meanwhile this process is the parent of orphans among its descendants."""

    def __enter__(self) -> None:
        self._set(1)

    def __exit__(self, *error: object) -> None:
        self._set(0)

    def _set(self, value: int) -> None:
        assert ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, value, 0, 0, 0) == 0


def _environment() -> Mapping[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _OWN}


def serve(channel: int) -> None:
    """Forks a process for each request on a socket, until the other end is closed."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    asked = socket.socket(fileno=channel)
    while True:
        data, passed, _, _ = socket.recv_fds(asked, _MESSAGE_BYTES, _DESCRIPTORS)
        if not data:
            return
        ours, theirs = os.pipe()
        between = os.fork()
        if between == 0:
            middle = os.getpid()
            pid = os.fork()
            if pid == 0:
                _run(json.loads(data), passed, middle)
            os.write(theirs, str(pid).encode())
            os._exit(0)  # orphans the process, for the parent to adopt
        os.waitpid(between, 0)
        for descriptor in passed:
            os.close(descriptor)
        os.close(theirs)
        asked.send(os.read(ours, 64))
        os.close(ours)


def _run(request: dict[str, Any], passed: Sequence[int], middle: int) -> None:
    """Runs the code of a request in this process, and ends it."""
    status = 1
    try:
        _take_descriptors(passed, request["descriptors"])
        while os.getppid() == middle:
            os.sched_yield()
        assert os.getppid() == request["parent"]
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_DFL)
        sys.argv = ["-c", *request["arguments"]]
        exec(request["code"], {"__name__": "__main__"})
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


def _take_descriptors(passed: Sequence[int], numbers: Sequence[int]) -> None:
    """Gives descriptors the numbers that they have at the other end, and closes all others. Nothing comes on 0."""
    high = [os.dup2(each, _HIGH + index) for index, each in enumerate(passed)]
    os.closerange(3, _HIGH)
    assert max(numbers) < _HIGH
    for each, number in zip(high, numbers, strict=True):
        os.dup2(each, number)
        os.close(each)
    nothing = os.open(os.devnull, os.O_RDONLY)
    if nothing != 0:
        os.dup2(nothing, 0)
        os.close(nothing)
