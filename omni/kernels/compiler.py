"""The process that compiles: it imports once, and then forks its workers.

    python -c "... from omni.kernels.compiler import main; main(PARENT, VARIANTS)"

It reads a pickled `Task` from its input. Each worker takes variants from the socket VARIANTS, one packet each: their number,
the variant, and the file that is created once it is in the cache. The socket's end is the end of the workers. For each
variant a line is written to the output: its number, and an error if it could not be compiled.
"""

import ctypes
import os
import pickle
import signal
import socket
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni.kernels.variant import Variant
from omni.utils.parent import exit_with

Packet = tuple[int, Variant, Path]
"""Number, variant, and marker file."""
_PACKET_BYTES = 2**20
"""Size of the receive buffer, larger than any packet."""
_SHOWN = 500
"""Characters of an error. A line of less than a page is written whole, even if others write too."""
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Task:
    """capability: compute capability of the device, 90 for 9.0. paths, environment: `sys.path` and all variables of Triton, which
    plugins may have changed since this process was started."""

    workers: int
    capability: int
    paths: tuple[str, ...]
    environment: Mapping[str, str]


def main(parent: int, variants: int) -> None:
    """parent: the process that started this one, and whose end is the end of this one. variants: the socket's descriptor. Exits the
    interpreter."""
    exit_with(parent)
    # Other output must not appear between the lines.
    results = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    warnings.simplefilter("ignore")
    try:
        import triton  # noqa: F401  # while the variants are recorded

        task: Task = pickle.load(sys.stdin.buffer)
    except (ImportError, EOFError):
        os._exit(1)
    sys.path[:] = task.paths
    for name in [name for name in os.environ if name.startswith("TRITON_")]:
        del os.environ[name]
    os.environ.update(task.environment)
    packets = socket.socket(fileno=variants)
    server = os.getpid()
    workers = []
    for _ in range(task.workers):
        worker = os.fork()
        if not worker:
            _exit_after(server)
            _work(task.capability, packets, results)
            os._exit(0)
        workers.append(worker)
    packets.close()  # the other end must notice when no worker is left
    with suppress(Exception):  # without it, the first launch makes it
        from triton.backends.nvidia.driver import CudaUtils

        CudaUtils()  # compiles C code too, also into the cache
    for worker in workers:
        os.waitpid(worker, 0)
    os._exit(0)


def _exit_after(server: int) -> None:
    """The kernel ends this worker when its server ends; a fork has no thread to watch it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)


def _work(capability: int, packets: socket.socket, results: int) -> None:
    compile_for(capability)
    while packet := packets.recv(_PACKET_BYTES):
        number, variant, marker = pickle.loads(packet)
        error = ""
        try:
            compile_variant(variant)
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()
        except BaseException as failed:  # for any error, the other variants are compiled
            error = " ".join(f"{type(failed).__name__}: {failed}".split())
        os.write(results, f"{number} {error[:_SHOWN]}".encode(errors="replace").strip() + b"\n")


class _Target:
    """The driver that compilation queries. It opens no device, so a process takes no device memory."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        return self._target


def compile_for(capability: int) -> None:
    """From now on, this process compiles for devices of a compute capability, 90 for 9.0. It needs none, and can launch nothing."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    driver.set_active(_Target(GPUTarget("cuda", capability, 32)))


def compile_variant(variant: Variant) -> None:
    """Compiles into Triton's cache, for the active driver's target. Raises the errors of Triton."""
    kernel = variant.found()
    compiled = kernel.run(grid=(1,), warmup=True, **variant.rebuilt())
    try:
        from triton.backends.nvidia.driver import CudaLauncher, make_launcher  # noqa: F401  # up to Triton 3.6
    except ImportError:
        return
    with suppress(Exception):  # without it, the launch makes it
        CudaLauncher(compiled.src, compiled.metadata)  # compiles the C code of the launch, also into the cache
