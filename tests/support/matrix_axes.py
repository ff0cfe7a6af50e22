"""The axes of the matrix, and a selection of its cells in which every two values of two axes meet."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BLOCK = 2
"""Tokens of a block: so few that every row soon wants another."""
ROOMY = 400
"""Blocks that are never used up."""


@dataclass(frozen=True, slots=True)
class Cell:
    """in_flight: steps. few_blocks: so few that requests are preempted. tiny_budget: a few tokens a step. cached: prefix cache.
    captured: steps replay what was captured. asked: name of the parameters that are tested."""

    in_flight: int
    few_blocks: bool
    tiny_budget: bool
    cached: bool
    captured: bool
    asked: str

    def __str__(self) -> str:
        blocks = "few blocks" if self.few_blocks else "any pool"
        budget = "tiny budget" if self.tiny_budget else "any budget"
        cache, how = "cached" if self.cached else "not cached", "captured" if self.captured else "eager"
        return f"{self.asked}, {self.in_flight} in flight, {blocks}, {budget}, {cache}, {how}"

    @property
    def seed(self) -> int:
        """Of the device and of what else is left to chance: no two cells are alike."""
        return sum(map(ord, str(self)))

    def settings(self, few: Mapping[str, int]) -> dict[str, object]:
        """Overrides. few: by stage, blocks that do not do."""
        return {
            f"{stage}.{name}": value
            for stage, blocks in few.items()
            for name, value in {
                "max_in_flight": self.in_flight,
                "block_size": BLOCK,
                "num_blocks": blocks if self.few_blocks else ROOMY,
                "max_num_batched_tokens": 5 if self.tiny_budget else 2048,
                "prefix_cache": self.cached,
                "graph_batch_sizes": None if self.captured else (),
                "graph_chunk_sizes": None if self.captured else (),
                "max_num_seqs": 6,
            }.items()
        }


def product(asked: Sequence[str]) -> list[Cell]:
    """Every cell."""
    truth = (False, True)
    return [Cell(*values) for values in itertools.product((1, 2, 4), truth, truth, truth, truth, asked)]


def pairs(cell: Cell) -> set[tuple[int, object, int, object]]:
    """Axis and value, twice: what meets in the cell."""
    values = (cell.in_flight, cell.few_blocks, cell.tiny_budget, cell.cached, cell.asked)
    return {(i, values[i], j, values[j]) for i, j in itertools.combinations(range(len(values)), 2)}


def covering(asked: Sequence[str]) -> list[Cell]:
    """Cells in which every pair of values of two axes occurs. The hardest come first where several would do."""
    cells = product(asked)[::-1]
    missing = set().union(*map(pairs, cells))
    chosen = []
    while missing:
        best = max(cells, key=lambda cell: len(pairs(cell) & missing))
        missing -= pairs(best)
        chosen.append(best)
    return chosen
