"""Compiles variants in processes, while this one records further ones and loads weights."""

import hashlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from omni.kernels.compiler import Packet, Task
from omni.kernels.variant import Variant
from omni.utils.interpreter import CAN_START
from omni.utils.log import safe_logger
from omni.utils.sockets import packet_pair

_log = safe_logger(__name__)

_MOST = 32
"""Processes: a start has a few hundred variants, and the slowest one bounds it."""
_STALLED_SECONDS = 120.0
"""Seconds without a result after which the processes are ended."""
_BOOT = (
    "import json, sys\n"
    "sys.path[:] = json.loads(sys.argv[2])\n"
    "from omni.kernels.compiler import main\n"
    "main(int(sys.argv[1]), int(sys.argv[3]))\n"
)


def process_count(asked: int | None, engines: int = 1) -> int:
    """The number of processes of an engine. asked: `engine.compile_processes`; None is one for each core that this process may
    use, less two for the load of weights, divided among the `engines` of this machine. 0 where none can be started."""
    if not CAN_START:
        return 0
    if asked is not None:
        return asked
    return max(1, min((_cores() - 2) // engines, _MOST))


def hash_triton() -> threading.Thread:
    """Starts a thread in which Triton hashes its own files. Without it, the first launch hashes them, for half a second, most of it
    without the interpreter's lock."""

    def run() -> None:
        with suppress(Exception):  # the first launch raises it
            from triton.runtime.cache import triton_key

            triton_key()

    thread = threading.Thread(target=run, name="omni-hash-triton", daemon=True)
    thread.start()
    return thread


def _cores() -> int:
    cores = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):  # no control group, or one without a limit
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


@dataclass(frozen=True, slots=True)
class Compiled:
    """compiled: variants that the processes compiled. failed: variants that they could not compile. known: variants that an
    earlier start has compiled."""

    compiled: int = 0
    failed: int = 0
    known: int = 0


class CompileProcesses:
    """A process that imports Triton and forks workers. If it ends early, the start continues: variants that it has not
    compiled are compiled at their first launch.

    `close` ends the process and its workers, as does the end of this process.
    """

    def __init__(self) -> None:
        """Starts the process, which does its imports until `compile`. Raises OSError if it cannot be started."""
        self._numbered: list[Variant] = []
        """The variants that no earlier start has compiled, by number."""
        self._results = 0
        self._failed = 0
        self._known = 0
        self._heard = time.monotonic()
        self._threads: list[threading.Thread] = []
        self._closing = threading.Lock()
        self._closed = False
        self._packets, end = packet_pair()
        # -P: no folder of the user's comes before `sys.path` is theirs. In a session of its own, no Ctrl-C reaches it.
        command = [sys.executable, "-P", "-c", _BOOT, str(os.getpid()), json.dumps(_paths()), str(end.fileno())]
        # One thread each: the workers are the parallelism.
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        with end:
            self._process = subprocess.Popen(
                command,
                start_new_session=True,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=[end.fileno()],
            )

    def compile(self, variants: Iterable[Variant], capability: tuple[int, int], workers: int) -> None:
        """Begins to compile the variants that no earlier start has compiled, for devices of a compute capability. Once.

        variants: read by a thread, so their iterator may wait for further ones. It has to end, also after `close`. workers: at
        least 1.
        """
        task = Task(workers, 10 * capability[0] + capability[1], _paths(), _triton_variables())
        with self._closing:
            if not self._closed:
                self._start(self._send, task, variants)

    def wait(self) -> Compiled:
        """Waits until everything is compiled, or the processes have ended or no longer report."""
        self._heard = time.monotonic()
        while running := [thread for thread in self._threads if thread.is_alive()]:
            running[-1].join(1.0)
            if time.monotonic() - self._heard > _STALLED_SECONDS:
                _log.warning("processes that compile kernels are ended: no result in %d s", _STALLED_SECONDS)
                break
        self.close()
        missing = len(self._numbered) - self._results
        if missing:
            _log.warning("%d kernels were not compiled by processes: their first launches compile them", missing)
        return Compiled(self._results - self._failed, self._failed, self._known)

    def close(self) -> None:
        """Ends the processes, and waits until the iterator of `compile` ends. Idempotent."""
        with self._closing:
            self._closed = True
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for thread in self._threads:
            thread.join()
        self._packets.close()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):  # bytes that were not written yet
                pipe.close()

    def _start(self, run: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments, name="omni-compile", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _send(self, task: Task, variants: Iterable[Variant]) -> None:
        try:
            for variant in variants:
                self._send_one(task, variant)
        finally:
            _log.debug("compiling %d kernels in %d processes", len(self._numbered), task.workers)
            with suppress(OSError):
                self._packets.shutdown(socket.SHUT_WR)

    def _send_one(self, task: Task, variant: Variant) -> None:
        try:
            marker = _marker(variant, task.capability)
            if marker.exists():
                self._known += 1
                return
            number: int = len(self._numbered)
            packet: Packet = number, variant, marker
            content = pickle.dumps(packet)
        # A kernel that no longer exists, that Triton wraps, or that cannot be sent: its first launch compiles it.
        except Exception as error:
            _log.debug("%s is not compiled by a process: %s", variant.kernel, error)
            return
        self._numbered.append(variant)
        with suppress(OSError):  # the processes have ended
            if not number:
                self._begin(task)
            self._packets.send(content)

    def _begin(self, task: Task) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(pickle.dumps(task))
        self._process.stdin.close()
        self._start(self._listen)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            number, _, error = line.decode(errors="replace").strip().partition(" ")
            self._heard = time.monotonic()
            self._results += 1
            if error:
                self._failed += 1
                _log.debug("%s was not compiled by a process: %s", self._numbered[int(number)].kernel, error)


def _paths() -> tuple[str, ...]:
    return tuple(path for path in sys.path if isinstance(path, str))  # Python ignores others too


def _triton_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("TRITON_")}


def _marker(variant: Variant, capability: int) -> Path:
    """The marker file of a variant in Triton's cache on disk, beside its entries. Its name holds everything that the
    compiled kernel depends on."""
    import triton

    kernel = variant.found()
    # Settings of Triton's change the compiled code; the place of its cache does not.
    settings = sorted(item for item in _triton_variables().items() if "CACHE" not in item[0])
    parts = (kernel.cache_key, variant, capability, triton.__version__, torch.__version__, settings)
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()
    return Path(triton.knobs.cache.dir) / "omni-variants" / digest
