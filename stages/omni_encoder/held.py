"""Outputs that requests still need."""

from collections import deque
from dataclasses import dataclass

from omni.stage import Produced
from omni_encoder.cache import Outputs, size_of

_POLLED = 32
"""Outputs that one tick asks after: thousands may be held, and most of them for long."""


@dataclass(frozen=True, slots=True)
class _Held:
    produced: Produced
    outputs: Outputs
    rank: tuple[int, int]


class HeldOutputs:
    """Keeps outputs until they are free, and counts their bytes; an output that several requests share counts for each.

    Outputs were allocated on the stage's stream, so their memory must not be given back before readers on other streams are
    through: `Produced.free`.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._held: deque[_Held] = deque()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def full(self) -> bool:
        """Whether as much is held as may be."""
        return self._bytes >= self._limit

    @property
    def first_rank(self) -> tuple[int, int]:
        """The lowest rank of a request that something is held for. Only that request, or one before it, may add to what is full:
        all others get on once it is through, and it would not get on without."""
        return min(held.rank for held in self._held)

    def add(self, produced: Produced, outputs: Outputs, rank: tuple[int, int]) -> None:
        self._held.append(_Held(produced, outputs, rank))
        self._bytes += size_of(outputs)

    def poll(self) -> bool:
        """Drops outputs that are free. Returns whether there were any."""
        before = len(self._held)
        for _ in range(min(before, _POLLED)):
            held = self._held.popleft()
            if held.produced.free:
                self._bytes -= size_of(held.outputs)
            else:
                self._held.append(held)
        return len(self._held) < before

    def clear(self) -> None:
        self._held.clear()
        self._bytes = 0
