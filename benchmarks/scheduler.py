"""Host time of planning a step: `Scheduler.plan` and `Scheduler.launched`, without any device work.

    python benchmarks/scheduler.py [--steps 400] [--json FILE]

Rows decode; behind them, requests wait for a row, or for blocks where there are rows left. Blocks are of 16 tokens and the prefix
cache is on, so growing, hashing and publishing are part of it. The cases take turns, a few steps each, so that what else the
machine does falls on all of them alike. Prints the median of each case, the growth from 100 to 10,000 waiting, and the cost of a
row as rows are added.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Iterable

import numpy as np

from bench.arguments import at_least, output_file
from omni.device.cpu import CpuDevice
from omni.sampling import SamplingParams
from omni_ar.inputs import Prompt
from omni_ar.model import ArShape, PassWeights
from omni_ar.options import ArOptions
from omni_ar.run.allocator import Allocator, RowTable
from omni_ar.run.blocks.pool import BlockPool
from omni_ar.run.blocks.reclaim import Reclaimer, Spiller
from omni_ar.run.draft_policy import DraftPolicy
from omni_ar.run.limits import Limits
from omni_ar.run.request import ArRequest
from omni_ar.run.scheduler import Scheduler

ROWS = (1, 16, 64, 256)
WAITING = (0, 100, 10_000)
SHORT_OF = ("rows", "blocks")
TURN = 8
"""Steps of a case before the next one's turn."""

_BLOCK = 16
_WAITING_TOKENS = 64
_SHAPE = ArShape(num_layers=1, num_kv_heads=1, head_dim=2, hidden_width=2, vocab_size=16, max_positions=16384)


class QueueCase:
    """`rows` requests that decode, and `waiting` that cannot start, for want of rows or of blocks."""

    def __init__(self, rows: int, waiting: int, short_of: str, steps: int) -> None:
        length = 64 + steps
        options = ArOptions(
            max_num_seqs=rows if short_of == "rows" else rows + 8,
            max_model_len=length + 64,
            block_size=_BLOCK,
            max_num_batched_tokens=100_000,
        )
        limits = Limits.of("decode", options, _SHAPE)
        device = CpuDevice()
        self.blocks = BlockPool(rows * limits.max_blocks)
        self.row_table = RowTable(limits.rows)
        spiller = Spiller(device, device.stream("decode"), limits.max_model_len)
        reclaimer = Reclaimer(self.blocks, spiller)
        allocator = Allocator(
            self.row_table,
            self.blocks,
            reclaimer,
            spiller,
            limits=limits,
            code_pages=None,
            prefix_cache=True,
            conditioned=False,
        )
        policy = DraftPolicy(drafts=0, weights=PassWeights(0, 1), adaptive=True)
        self.scheduler = Scheduler(allocator, limits, False, policy)
        self.rows = rows
        self._reserve: list[int] = []
        self.times: list[float] = []
        self._numbers = itertools.count()
        # Prompts of 16 to 31 tokens, so that about as many tables grow in each step.
        self._add(16 + index % 16 for index in range(rows))
        while self.row_table.used < rows:
            self._step()
        self._reserve = self.blocks.allocate(self.blocks.available)
        self._free_blocks_for_growth()
        self._add(_WAITING_TOKENS for _ in range(waiting))

    def turn(self, steps: int = TURN) -> None:
        self.times += [self._step() for _ in range(steps)]
        assert self.row_table.used == self.rows, "nobody comes or goes"

    def _add(self, lengths: Iterable[int]) -> None:
        for length in lengths:
            number = next(self._numbers)
            order = (0, number)
            request = ArRequest(str(number), SamplingParams(max_tokens=1_000_000), set(), order)
            request.prompt = Prompt(
                columns=np.full((1, length), number, np.int64),
                positions=np.arange(length)[None],
                next_position=length,
            )
            request.max_tokens = 1_000_000
            self.scheduler.add(request)

    def _step(self) -> float:
        """Microseconds of planning."""
        start = time.perf_counter_ns()
        plan = self.scheduler.plan()
        assert plan is not None
        self.scheduler.launched(plan)
        taken = (time.perf_counter_ns() - start) / 1000
        for request in plan.sampled:
            request.outputs.append(1)
        self._free_blocks_for_growth()
        return taken

    def _free_blocks_for_growth(self) -> None:
        """A free block for each row: too few for these and for one of the waiting prompts."""
        count = self.rows - self.blocks.available
        if self._reserve and count > 0:
            self.blocks.release(self._reserve[-count:])
            del self._reserve[-count:]


def measure(steps: int) -> dict[str, float]:
    """Median microseconds by case."""
    medians: dict[str, float] = {}
    for rows in ROWS:
        cases = {
            f"{rows} rows, {waiting} waiting for {short_of}": QueueCase(rows, waiting, short_of, steps)
            for short_of in SHORT_OF
            for waiting in WAITING
        }
        for _ in range((steps - 64) // TURN):
            for case in cases.values():
                case.turn()
        medians |= {name: statistics.median(case.times[4 * TURN :]) for name, case in cases.items()}
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=at_least(128), default=400, help="steps of each case, at least 128")
    parser.add_argument("--json", type=output_file, help="write the medians here")
    arguments = parser.parse_args()
    medians = measure(arguments.steps)
    for name, microseconds in medians.items():
        print(f"{name:40} p50 {microseconds:8.1f} us")
    for short_of, rows in itertools.product(SHORT_OF, ROWS):
        few, many = (medians[f"{rows} rows, {waiting} waiting for {short_of}"] for waiting in (100, 10_000))
        print(f"{rows} rows: 10,000 waiting for {short_of} / 100 waiting: {many / few:.2f}")
    alone = {rows: medians[f"{rows} rows, 0 waiting for rows"] for rows in ROWS}
    for fewer, more in itertools.pairwise(ROWS):
        print(f"from {fewer} to {more} rows: {(alone[more] - alone[fewer]) / (more - fewer):.2f} us for each row added")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(medians, file, indent=1)


if __name__ == "__main__":
    main()
