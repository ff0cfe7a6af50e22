"""What a transfer that waits for the other GPU takes from products beside it.

    python benchmarks/pending_receive.py [--rows 32]

The first of two GPUs receives a tensor of so many bytes that the second sends later. Meanwhile products of `--rows` rows run on
another stream. Microseconds of a replay of 96 of them, with as many thread blocks of NCCL as it chooses, and with one, as the
pipelines of `omni_ar` have it (`omni.parallel`).
"""

import argparse
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from bench.arguments import need_cuda, positive_int
from bench.replay import captured
from bench.report import environment, print_facts, print_table

SIZES = (0, 1024, 128 * 1024, 512 * 1024, 16 * 2**20)
"""Bytes; 0: nothing is under way."""
WIDTH, OUTPUTS, PRODUCTS, REPLAYS = 2048, 8192, 96, 5
STARTED_SECONDS = 0.01
"""Time in which NCCL's kernel has certainly started."""


class Ends:
    """The two ends of a transfer, in a thread each. blocks: thread blocks of NCCL at most; None for its own choice."""

    def __init__(self, blocks: int | None) -> None:
        self._store, self._turn, self._blocks = HashStore(), threading.Barrier(2), blocks

    def run(self, rows: int) -> dict[int, float]:
        with ThreadPoolExecutor(2) as threads:
            times, sent = threads.submit(self._receiver, rows), threads.submit(self._sender)
            sent.result()
            return times.result()

    def _group(self, rank: int) -> Any:
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
        options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        if self._blocks is not None:
            options.config.min_ctas = options.config.max_ctas = self._blocks
        group: Any = dist.ProcessGroupNCCL(self._store, rank, 2, options)
        # The first use connects the GPUs.
        (group.recv if rank == 0 else group.send)([torch.ones(1, device=device)], 1 - rank, 0).wait()
        torch.cuda.synchronize()
        return group

    def _receiver(self, rows: int) -> dict[int, float]:
        group, beside, times = self._group(0), torch.cuda.Stream(), dict[int, float]()
        on: Any = {"device": "cuda", "dtype": torch.bfloat16}
        x_RD = torch.randn(rows, WIDTH, **on)
        weights = [torch.randn(OUTPUTS, WIDTH, **on) for _ in range(PRODUCTS)]
        with captured([lambda: [x_RD @ weight_ND.T for weight_ND in weights]]) as replay:
            for size in SIZES:
                received = torch.empty(size, dtype=torch.uint8, device="cuda")
                self._turn.wait()
                with torch.cuda.stream(beside):
                    if size:
                        group.recv([received], 1, 0)
                time.sleep(STARTED_SECONDS)
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                replay()
                start.record()
                for _ in range(REPLAYS):
                    replay()
                end.record()
                end.synchronize()
                times[size] = 1000 * start.elapsed_time(end) / REPLAYS
                self._turn.wait()
                torch.cuda.synchronize()
        return times

    def _sender(self) -> None:
        group = self._group(1)
        for size in SIZES:
            sent = torch.zeros(size, dtype=torch.uint8, device="cuda")
            self._turn.wait()
            self._turn.wait()
            if size:
                group.send([sent], 0, 0).wait()
            torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=positive_int, default=32)
    arguments = parser.parse_args()
    need_cuda()
    if torch.cuda.device_count() < 2:
        parser.error("needs 2 GPUs")
    by_blocks = [Ends(blocks).run(arguments.rows) for blocks in (None, 1)]
    cells = [(size, *(f"{times[size]:.0f}" for times in by_blocks)) for size in SIZES]
    print_table(("bytes", "NCCL's choice, us", "one block, us"), cells)
    print_facts(environment())


if __name__ == "__main__":
    main()
