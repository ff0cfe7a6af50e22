"""Compiles variants in processes, while this one loads weights."""

import hashlib
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from omni.kernels.compiler import Task
from omni.kernels.variant import Variant

_log = logging.getLogger(__name__)

_SUPPORTED = sys.platform == "linux" and bool(sys.executable)  # an interpreter inside another program has no executable
_MOST = 32
"""Processes: a start has a few hundred variants, and the slowest one bounds it."""
_STALLED_SECONDS = 120.0
"""Seconds without a result after which the processes are ended."""
_BOOT = (
    "import json, sys\n"
    "sys.path[:] = json.loads(sys.argv[2])\n"
    "from omni.kernels.compiler import main\n"
    "main(int(sys.argv[1]))\n"
)


def process_count(asked: int | None, engines: int = 1) -> int:
    """The number of processes of an engine. asked: `engine.compile_processes`; None is one for each core that this process may
    use, less two for the load of weights, divided among the `engines` of this machine. 0 where none can be started."""
    if not _SUPPORTED:
        return 0
    if asked is not None:
        return asked
    return max(1, min((_cores() - 2) // engines, _MOST))


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

    def __init__(self, processes: int) -> None:
        """Starts the process, which imports what it needs until `compile`. Raises OSError if it cannot be started."""
        self._processes = processes
        self._results = 0
        self._failed = 0
        self._variants: tuple[tuple[Variant, Path], ...] = ()
        self._known = 0
        self._heard = time.monotonic()
        self._thread: threading.Thread | None = None
        self._closing = threading.Lock()
        self._closed = False
        paths = [path for path in sys.path if isinstance(path, str)]  # Python ignores others too
        # -P: no folder of the user's comes before `sys.path` is theirs. In a session of its own, no Ctrl-C reaches it.
        command = [sys.executable, "-P", "-c", _BOOT, str(os.getpid()), json.dumps(paths)]
        # One thread each: the workers are the parallelism.
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        self._process = subprocess.Popen(
            command,
            start_new_session=True,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def compile(self, variants: Iterable[Variant], capability: tuple[int, int]) -> None:
        """Begins to compile the variants that no earlier start has compiled, for devices of a compute capability. Once."""
        number = 10 * capability[0] + capability[1]
        marked = []
        for variant in variants:
            try:
                marked.append((variant, _marker(variant, number)))
            except (
                Exception
            ) as error:  # a kernel that no longer exists, or that Triton wraps: its first launch compiles it
                _log.debug("%s is not compiled by a process: %s", variant.kernel, error)
        self._variants = tuple((variant, marker) for variant, marker in marked if not marker.exists())
        self._known = len(marked) - len(self._variants)
        if not self._variants:
            self.close()
            return
        task = pickle.dumps(Task(self._processes, number, self._variants))
        with self._closing:
            if self._closed:
                return
            _log.debug("compiling %d kernels in %d processes", len(self._variants), self._processes)
            self._heard = time.monotonic()
            self._thread = threading.Thread(target=self._listen, args=(task,), name="omni-compile", daemon=True)
            self._thread.start()

    def wait(self) -> Compiled:
        """Waits until everything is compiled, or the processes have ended or say nothing any more."""
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(1.0)
            if self._thread.is_alive() and time.monotonic() - self._heard > _STALLED_SECONDS:
                _log.warning("processes that compile kernels are ended: no result in %d s", _STALLED_SECONDS)
                break
        self.close()
        missing = len(self._variants) - self._results
        if missing:
            _log.warning("%d kernels were not compiled by processes: their first launches compile them", missing)
        return Compiled(self._results - self._failed, self._failed, self._known)

    def close(self) -> None:
        """Ends the processes. Idempotent."""
        with self._closing:
            self._closed = True
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._thread is not None:
            self._thread.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):  # what was not written yet
                pipe.close()

    def _listen(self, task: bytes) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(task)
            self._process.stdin.close()
        except OSError:
            return  # it has ended
        for line in self._process.stdout:
            number, _, error = line.decode(errors="replace").strip().partition(" ")
            self._heard = time.monotonic()
            self._results += 1
            if error:
                self._failed += 1
                _log.debug("%s was not compiled by a process: %s", self._variants[int(number)][0].kernel, error)


def _marker(variant: Variant, capability: int) -> Path:
    """The file that says that a variant is in Triton's cache on disk, beside its entries. Its name holds everything that the
    compiled kernel depends on."""
    import triton

    kernel = variant.found()
    # Settings of Triton's change what it compiles; the place of its cache does not.
    settings = sorted(item for item in os.environ.items() if item[0].startswith("TRITON_") and "CACHE" not in item[0])
    parts = (kernel.cache_key, variant, capability, triton.__version__, torch.__version__, settings)
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()
    return Path(triton.knobs.cache.dir) / "omni-variants" / digest
