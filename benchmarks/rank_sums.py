"""Times of a sum over two GPUs, and of the residual addition and the norm behind it, by rows.

    python benchmarks/rank_sums.py

A chain of them in one CUDA graph, bfloat16. Columns, in microseconds of one: a sum through NCCL; through the memory of the other
GPU; that, followed by the kernel of addition and norm; and all in one kernel. Medians of replays, at rank 0.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import FileStore
from torch.multiprocessing.spawn import spawn

from bench.arguments import need_cuda, positive_int
from bench.replay import event_seconds
from bench.report import environment, print_facts
from omni.parallel import Communicator, open_communicator
from omni.parallel.torch_group import TorchCommunicator
from omni_ar.kernels.norm import PartialSum, add_rms_norm

RANKS, CALLS, REPLAYS, EPS = 2, 96, 20, 1e-6
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


class Addition:
    """One addition of a residual stream, over and over."""

    def __init__(self, ranks: Communicator, rows: int, width: int) -> None:
        on: Any = {"device": "cuda", "dtype": torch.bfloat16}
        self._ranks = ranks
        self._x_TD, self._part_TD = torch.randn(2, rows, width, **on)
        self._weight_D = torch.ones(width, **on)

    def nccl(self) -> Tensor:
        return TorchCommunicator.all_reduce(self._ranks, self._part_TD)  # type: ignore[arg-type]

    def memory(self) -> Tensor:
        return self._ranks.all_reduce(self._part_TD)

    def apart(self) -> Tensor:
        return add_rms_norm(self._x_TD, self.memory(), self._weight_D, EPS)[0]

    def fused(self) -> Tensor:
        return add_rms_norm(self._x_TD, PartialSum(self._part_TD, self._ranks), self._weight_D, EPS)[0]


def seconds(call: Callable[[], Tensor]) -> float:
    """Of one call."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        call()
        stream.synchronize()
        # A thread of NCCL asks the device for its events meanwhile.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for _ in range(CALLS):
                call()
        return event_seconds(graph.replay, REPLAYS) / CALLS


@torch.inference_mode()
def measure(rank: int, store: str, width: int, rows: Sequence[int]) -> None:
    device = torch.device("cuda", rank)
    ranks = open_communicator(FileStore(store, RANKS), rank, RANKS, device, 60)
    torch.cuda.set_device(device)
    for count in rows:
        step = Addition(ranks, count, width)
        times = [seconds(call) * 1e6 for call in (step.nccl, step.memory, step.apart, step.fused)]
        if not rank:
            print(f"  {count:3d} rows: " + " ".join(f"{time:8.2f}" for time in times) + " us", flush=True)
    ranks.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=positive_int, default=2048)
    parser.add_argument("--rows", type=positive_int, nargs="+", default=ROWS)
    arguments = parser.parse_args()
    need_cuda()
    if torch.cuda.device_count() < RANKS:
        parser.error(f"needs {RANKS} GPUs")
    print(f"width {arguments.width}: NCCL, memory, memory and norm, one kernel")
    with tempfile.TemporaryDirectory() as folder:
        spawn(measure, (str(Path(folder) / "store"), arguments.width, arguments.rows), RANKS)
    print_facts(environment())


if __name__ == "__main__":
    main()
