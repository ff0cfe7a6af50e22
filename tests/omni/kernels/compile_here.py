"""Runs where kernels are compiled, not interpreted: `test_processes` starts it.

python compile_here.py FOLDER CASE[,ARGUMENT...] ...

Imports torch and Triton once. Each case runs in a forked process, with a cache of its own in the folder, where it leaves what it
has found (CASE.json) and its output (CASE.log).
"""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from omni.kernels import CompileCounter, CompileProcesses, Variant, VariantRecorder
from omni.kernels import processes as compile_processes
from omni.kernels.compiler import _Target
from tests.support.patience import PATIENCE_SECONDS

Pair = namedtuple("Pair", ["left", "right"])


@triton.jit(do_not_specialize=["count"])
def add(pair, out_ptr, count, stride, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK) * stride
    total = tl.load(pair.left + at, mask=at < count) + tl.load(pair.right + at, mask=at < count)
    tl.store(out_ptr + at, total, mask=at < count)


@triton.jit
def copy_tile(source, out_ptr, scale, FIRST: tl.constexpr):
    tile = source.load([FIRST, 0])
    at = tl.arange(0, 16)[:, None] * 64 + tl.arange(0, 64)[None, :]
    tl.store(out_ptr + at, tile * scale)


@triton.jit
def broken(x_ptr, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), tl.no_such_function())


@triton.jit
def endless(x_ptr, LOOPS: tl.constexpr):
    for loop in tl.static_range(LOOPS):
        tl.store(x_ptr + loop, tl.load(x_ptr + loop) + tl.load(x_ptr + 2 * loop))


WIDTH = tl.constexpr(64)


@triton.jit
def positions():
    return tl.arange(0, WIDTH)


@triton.jit
def clear(x_ptr):
    tl.store(x_ptr + positions(), 0.0)


@triton.jit
def double(x_ptr):
    tl.store(x_ptr + positions(), 2 * tl.load(x_ptr + positions()))


def launches(device: str) -> None:
    """The launches of a start, with tensors of a device."""
    x: Tensor = torch.zeros(256, dtype=torch.float32, device=device)
    for count, stride, at in ((3, 1, 0), (16, 16, 0), (5, 17, 0), (7, 2, 1)):
        add[(1,)](Pair(x[at:], x), x, count, stride, BLOCK=64, num_warps=1 + (count == 3))
    tile = TensorDescriptor.from_tensor(torch.zeros(64, 64, dtype=torch.bfloat16, device=device), [16, 64])
    copy_tile[(1,)](tile, x, 0.25, FIRST=16)


def recorded(run: Callable[[], None]) -> VariantRecorder:
    recorder = VariantRecorder()
    with recorder.recording():
        run()
    return recorder


def asked_of_triton() -> CompileCounter:
    """Triton looks up the kernels of launches as for a GPU, and compiles those that it does not find."""
    counter, run = CompileCounter(), JITFunction.run
    JITFunction.run = lambda kernel, *args, **kwargs: run(kernel, *args, **kwargs | {"warmup": True})
    driver.set_active(_Target(GPUTarget("cuda", 90, 32)))
    with counter.counting():
        launches("cpu")
    return counter


def forked(command: Sequence[str], env: Mapping[str, str], **options: Any) -> "subprocess.Popen[bytes]":
    """Starts the server as a fork of this process, which has imported Triton already. The case `cached` starts it as users do."""

    def serve() -> NoReturn:
        packets = int(command[-1])
        os.closerange(3, packets)  # also the pipe at whose end `Popen` returns
        os.closerange(packets + 1, 256)
        os.environ.clear()
        os.environ.update(env)
        sys.argv = ["-c", *command[4:]]
        try:
            exec(command[3], {"__name__": "__main__"})
        finally:
            os._exit(1)

    return subprocess.Popen(command, env=env, preexec_fn=serve, **options)


def cached() -> dict[str, Any]:
    """Processes compile the kernels that Triton looks up later, and a further start compiles none. Before `compile`, a plugin adds
    the folder of these kernels and chooses another cache."""
    variants = recorded(lambda: launches("meta")).variants
    starts, paths, cache = [], sys.path[:], os.environ["TRITON_CACHE_DIR"]
    for _ in range(2):
        sys.path[:] = [path for path in paths if path != str(Path(__file__).parent)]
        os.environ["TRITON_CACHE_DIR"] = f"{cache}.before"
        processes = CompileProcesses()
        sys.path[:], os.environ["TRITON_CACHE_DIR"] = paths, cache
        processes.compile(variants, (9, 0), 2)
        done = processes.wait()
        starts.append((done.compiled, done.failed, done.known))
    counter = asked_of_triton()
    return {"variants": len(variants), "starts": starts, "compiled": counter.compiled, "cached": counter.cached}


def streamed() -> dict[str, Any]:
    """The second variant is known only when the first is compiled."""
    processes, first = CompileProcesses(), []

    def found_in_turn() -> Iterator[Variant]:
        for number, variant in enumerate(recorded(lambda: launches("meta")).variants):
            deadline = time.monotonic() + PATIENCE_SECONDS
            while number == 1 and not processes._results and time.monotonic() < deadline:
                time.sleep(0.05)
            first.append(processes._results)
            yield variant

    processes.compile(found_in_turn(), (9, 0), 2)
    return {"compiled": processes.wait().compiled, "before the second": first[1]}


def missing() -> dict[str, Any]:
    """What no process compiled is counted."""
    counter = asked_of_triton()
    return {"compiled": counter.compiled, "cached": counter.cached}


def failing() -> dict[str, Any]:
    """A kernel that no longer exists, one that cannot be sent, one that does not compile, and one that does."""
    x = torch.zeros(256, device="meta")

    def run() -> None:
        broken[(1,)](x, BLOCK=4)
        add[(1,)](Pair(x, x), x, 3, 1, BLOCK=64)

    processes = CompileProcesses()
    unsent = Variant("compile_here:clear", (("x_ptr", lambda: None),), ())
    processes.compile([Variant("compile_here:gone", (), ()), unsent, *recorded(run).variants], (9, 0), 1)
    done = processes.wait()
    return {"compiled": done.compiled, "failed": done.failed}


def slow(processes: CompileProcesses) -> None:
    x = torch.zeros(256, device="meta")
    processes.compile(recorded(lambda: endless[(1,)](x, LOOPS=100_000)).variants, (9, 0), 2)


def group(server: int) -> list[int]:
    """The processes of a server's session that run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(of) == server and state != "Z":
            found.append(int(path.parent.name))
    return found


def left(server: int) -> list[int]:
    """Those that still run when all had time to end: a process that is killed needs some, the more memory it has."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while group(server) and time.monotonic() < deadline:
        time.sleep(0.05)
    return group(server)


def wait_for(workers: int, server: int) -> None:
    while len(group(server)) < 1 + workers:
        time.sleep(0.05)


def closed() -> dict[str, Any]:
    """An error of the start closes the processes while they compile."""
    processes = CompileProcesses()
    slow(processes)
    wait_for(1, processes._process.pid)
    processes.close()
    processes.close()
    return {"left": left(processes._process.pid), "threads": threading.active_count()}


def killed() -> dict[str, Any]:
    """The server of the processes is killed, for example by the system for memory: the start continues, and no worker is left."""
    processes = CompileProcesses()
    slow(processes)
    server = processes._process.pid
    wait_for(1, server)
    os.kill(server, signal.SIGKILL)
    done = processes.wait()
    return {"compiled": done.compiled, "left": left(server)}


def abandoned() -> dict[str, Any]:
    """The process that started the others is killed."""
    reads, writes = os.pipe()
    starter = os.fork()
    if not starter:
        processes = CompileProcesses()
        slow(processes)
        wait_for(1, processes._process.pid)
        os.write(writes, json.dumps(processes._process.pid).encode())
        time.sleep(3600)
    server = json.loads(os.read(reads, 100))
    running = len(group(server))
    os.kill(starter, signal.SIGKILL)
    os.waitpid(starter, 0)
    return {"running": running, "left": left(server)}


def keys(first: str, second: str) -> dict[str, Any]:
    """The keys of two kernels that share a function, looked up in this order."""
    return {name: Variant(f"compile_here:{name}", (), ()).found().cache_key for name in (first, second)}


CASES = {case.__name__: case for case in (cached, streamed, missing, failing, closed, killed, abandoned, keys)}


def run(folder: Path, case: str) -> None:
    """Ends the process."""
    log = os.open(folder / f"{case}.log", os.O_CREAT | os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.environ["TRITON_CACHE_DIR"] = str(folder / f"{case}.cache")
    name, *arguments = case.split(",")
    if name != "cached":
        forking = SimpleNamespace(Popen=forked, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)
        vars(compile_processes)["subprocess"] = forking
    try:
        (folder / f"{case}.json").write_text(json.dumps(CASES[name](*arguments)))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)


def main(folder: str, *cases: str) -> None:
    logging.basicConfig(level=logging.DEBUG)
    for case in cases:
        if not (child := os.fork()):
            run(Path(folder), case)
        os.waitpid(child, 0)


if __name__ == "__main__":
    # Kernels are found by the name of their module, which `__main__` is not elsewhere.
    import_module("compile_here").main(*sys.argv[1:])
