"""The blocks of one request while it is in memory."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from omni.payload import PageSlice
from omni.stage import Hold


@dataclass(frozen=True, slots=True)
class Lent:
    """Payload pages that consumers may still read: the producer's hold, and the slices they were given."""

    hold: Hold
    slices: Sequence[PageSlice]


@dataclass(slots=True, eq=False)
class BlockTable:
    """A request's blocks in order. A preempted request leaves its table behind and gets a new one.

    owner: the request's id. unread: launched steps whose tokens the
    host has not read, and whose payload it has not lent. lent: payload in the blocks that consumers may still read.
    """

    owner: str
    ids: NDArray[np.int64]
    count: int = 0
    unread: int = 0
    lent: deque[Lent] = field(default_factory=deque)

    @classmethod
    def of(cls, owner: str, blocks: Sequence[int], max_blocks: int) -> "BlockTable":
        table = cls(owner, np.zeros(max_blocks, np.int64))
        for block in blocks:
            table.append(block)
        return table

    @property
    def blocks(self) -> NDArray[np.int64]:
        return self.ids[: self.count]

    def append(self, block: int) -> None:
        self.ids[self.count] = block
        self.count += 1

    def lend(self, lent: Lent) -> None:
        # Consumers take payloads in order, so what is free is at the front.
        while self.lent and self.lent[0].hold.free:
            self.lent.popleft()
        self.lent.append(lent)

    def slots(self, positions: NDArray[np.int64], block_size: int) -> NDArray[np.int64]:
        """Flat slots of token positions: `ids[position // block_size] * block_size + position % block_size`."""
        return self.ids[positions // block_size] * block_size + positions % block_size
