"""KV blocks and rows: the two things a running request owns."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NULL_BLOCK = 0
"""Never handed out: it absorbs the writes of rows that have stopped."""


class BlockPool:
    """Which of a stage's KV blocks are free. Payload pages share the numbering, so one pool serves both."""

    def __init__(self, num_blocks: int) -> None:
        self._free = list(range(num_blocks, NULL_BLOCK, -1))
        self.capacity = num_blocks

    @property
    def used(self) -> int:
        return self.capacity - len(self._free)

    @property
    def available(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """`count` blocks. The caller has checked `available`."""
        if count > len(self._free):
            raise RuntimeError(f"{count} blocks wanted, {len(self._free)} free")
        return [self._free.pop() for _ in range(count)]

    def release(self, blocks: list[int]) -> None:
        self._free.extend(reversed(blocks))


@dataclass(frozen=True, slots=True)
class Row:
    """A stable place in per-row device state. generation: tells a row's owner from the one before."""

    index: int
    generation: int


class RowTable:
    """Hands out rows. A request keeps its row from admission to its end."""

    def __init__(self, num_rows: int) -> None:
        self._free = list(range(num_rows - 1, -1, -1))
        self._generations = [0] * num_rows

    @property
    def used(self) -> int:
        return len(self._generations) - len(self._free)

    @property
    def available(self) -> int:
        return len(self._free)

    def allocate(self) -> Row:
        index = self._free.pop()
        return Row(index, self._generations[index])

    def retire(self, row: Row) -> None:
        """Results for this row that are still under way are to be dropped from here on. The index is not free yet."""
        self._generations[row.index] += 1

    def release(self, row: Row) -> None:
        """The device is done with the row."""
        self._free.append(row.index)

    def current(self, row: Row) -> bool:
        """Whether the row still belongs to the request that was given it."""
        return self._generations[row.index] == row.generation


def slots_of(blocks: NDArray[np.int64], positions: NDArray[np.int64], block_size: int) -> NDArray[np.int64]:
    """Flat slots of token positions: `blocks[position // block_size] * block_size + position % block_size`."""
    return blocks[positions // block_size] * block_size + positions % block_size
