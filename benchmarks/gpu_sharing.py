"""Two processes that use one GPU in turns: how long a small copy of one takes when the other has just used it.

    python benchmarks/gpu_sharing.py [--bytes 64K 64M] [--mps] [--json FILE]

Without CUDA MPS the GPU switches between the processes' contexts, which takes longer than the copy. This is the floor of a payload
between two processes on one GPU: a switch to the producer for the copy into the pool, and one to the consumer for its launch.
`--mps` starts a control daemon of its own in a temporary folder, and stops it at the end.

Per size: the time from the launch of a copy on the device until the host finds its event complete, alone and in turns with another
process that copies 64 KiB; and the same of the other process. Medians, microseconds.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import torch

from bench.arguments import need_cuda, output_file
from bench.report import environment, print_facts, print_table, write_json

_UNITS = {"K": 2**10, "M": 2**20}
_OTHERS = 2**16
_TURNS = 200


@dataclass(frozen=True, slots=True)
class SharedRun:
    """Microseconds."""

    bytes: int
    alone: float
    in_turns: float
    other: float


def copying(size: int) -> Callable[[], float]:
    """A function that copies `size` bytes on the device, and returns the microseconds that it took."""
    stream, event = torch.cuda.Stream(), torch.cuda.Event()
    source = torch.zeros(size, dtype=torch.uint8, device="cuda")
    target = torch.zeros_like(source)

    def copy() -> float:
        start = time.perf_counter()
        with torch.cuda.stream(stream):
            target.copy_(source)
        event.record(stream)
        while not event.query():
            pass
        return 1e6 * (time.perf_counter() - start)

    for _ in range(20):
        copy()
    return copy


def serve() -> None:
    """The other process: a copy for every line that it reads, whose time it answers."""
    copy = copying(_OTHERS)
    print("ready", flush=True)
    for _ in sys.stdin:
        print(copy(), flush=True)


def measure(size: int) -> SharedRun:
    copy = copying(size)
    alone = statistics.median(copy() for _ in range(_TURNS))
    command = [sys.executable, __file__, "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        mine, theirs = [], []
        for _ in range(_TURNS):
            mine.append(copy())
            print(file=other.stdin, flush=True)
            theirs.append(float(other.stdout.readline()))
        other.stdin.close()
    return SharedRun(size, alone, statistics.median(mine), statistics.median(theirs))


@contextmanager
def mps_daemon() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True)
        try:
            yield
        finally:
            subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bytes", nargs="+", default=["64K", "64M"], help="such as 64K")
    parser.add_argument("--mps", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=output_file, help="write the numbers here")
    arguments = parser.parse_args()
    need_cuda()
    if arguments.serve:
        return serve()
    sizes = [int(text[:-1]) * _UNITS[text[-1]] for text in arguments.bytes]
    if arguments.mps:
        # Before CUDA starts in this process, which reads the folder then.
        with mps_daemon():
            command = [sys.executable, __file__, "--bytes", *arguments.bytes]
            subprocess.run([*command, *(("--json", str(arguments.json)) if arguments.json else ())], check=True)
        return None
    runs = [measure(size) for size in sizes]
    header = ("bytes", "alone us", "in turns us", "the other us")
    print_table(
        header, [(f"{one.bytes:,}", *(f"{t:.0f}" for t in (one.alone, one.in_turns, one.other))) for one in runs]
    )
    facts = environment() | {"mps": os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "none")}
    print_facts(facts)
    return write_json(arguments.json, [asdict(one) for one in runs], facts)


if __name__ == "__main__":
    main()
