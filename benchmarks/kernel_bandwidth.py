"""Every kernel at the shapes that matter: bytes over time, as a share of a copy's bandwidth in the same run.

    python benchmarks/kernel_bandwidth.py [--only moe attention ...] [--json FILE]

Times are medians of calls in one CUDA graph, so launches cost as much as in a captured step. Weights, keys and values are
rotated over more memory than the L2 cache holds; activations of a few rows stay in it. `share` is the floor over the time: the
bytes that a call cannot do without over a copy's bandwidth, or its operations over the rate of a large matrix product, whichever
takes longer. Kernels of a few rows move almost no bytes: for these, compare microseconds and not shares.
"""

import argparse
from dataclasses import dataclass
from itertools import chain

import torch

from bench import sampling_cases, step_cases
from bench.arguments import device_here, output_file
from bench.kernel_cases import Buffers, KernelCase, cases
from bench.kernel_shapes import FULL, TINY
from bench.kernel_time import seconds_of
from bench.replay import event_seconds
from bench.report import copy_bandwidth, environment, print_facts, print_table, write_json


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """seconds: of one call. floor: seconds."""

    case: KernelCase
    seconds: float
    floor: float

    @property
    def cells(self) -> tuple[str, ...]:
        return (
            self.case.name,
            f"{self.seconds * 1e6:.1f}",
            f"{self.floor * 1e6:.1f}",
            f"{self.case.bytes / self.seconds / 1e9:.0f}",
            f"{self.case.flops / self.seconds / 1e12:.1f}" if self.case.flops else "",
            f"{self.floor / self.seconds:.0%}",
        )


def product_rate(dtype: torch.dtype) -> float:
    """Operations per second of a large matrix product, random data."""
    size = 8192
    a, b = (torch.randn(size, size, device="cuda", dtype=dtype) for _ in range(2))
    return 2 * size**3 / event_seconds(lambda: a @ b, 6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", default=[""], help="cases whose names hold one of these")
    parser.add_argument("--device", type=device_here("--tiny --device cpu"), choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes: to see that it runs")
    parser.add_argument("--json", type=output_file, help="write the numbers here")
    arguments = parser.parse_args()
    cuda = arguments.device == "cuda"
    dtype = torch.bfloat16 if cuda else torch.float32
    bandwidth, rate = (copy_bandwidth(), product_rate(dtype)) if cuda else (1e10, 1e11)
    device, sizes = torch.device(arguments.device), TINY if arguments.tiny else FULL
    buffers = Buffers(device, dtype)
    measured = []
    with torch.inference_mode():
        for case in chain(*(of(sizes, buffers) for of in (cases, sampling_cases.cases, step_cases.cases))):
            if any(part in case.name for part in arguments.only):
                floor = max(case.bytes / bandwidth, case.flops / rate)
                measured.append(Bandwidth(case, seconds_of(case, device), floor))
    header = ("kernel", "us", "floor us", "GB/s", "TFLOP/s", "share")
    print_table(header, [one.cells for one in measured])
    facts = environment() | {
        "copy": f"{bandwidth / 1e12:.2f} TB/s" if cuda else "assumed",
        "matrix product": f"{rate / 1e12:.0f} TFLOP/s" if cuda else "assumed",
    }
    print_facts(facts)
    numbers = [
        {"name": one.case.name, "seconds": one.seconds, "floor": one.floor, "bytes": one.case.bytes} for one in measured
    ]
    write_json(arguments.json, numbers, facts)


if __name__ == "__main__":
    main()
