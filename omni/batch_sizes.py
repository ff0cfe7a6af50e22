"""Sizes that steps are captured for: numbers of rows, or whatever else a stage's batches are measured in."""

import logging
from bisect import bisect_left, insort
from collections.abc import Iterable

_log = logging.getLogger(__name__)

_MOST_CAPTURED = 512


def captured_sizes(given: Iterable[int] | None, most: int) -> tuple[int, ...]:
    """`given`, or, where a user leaves the choice open, sizes up to `most`: closer together where a step's time depends more on how
    many rows it has. The largest first, to capture in this order: what a smaller step allocates fits where a larger one's was."""
    if given is not None:
        return tuple(sorted(set(given), reverse=True))
    sizes = {1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, _MOST_CAPTURED + 1, 32)}
    return tuple(sorted({size for size in sizes if size < most} | {min(most, _MOST_CAPTURED)}, reverse=True))


def check_sizes(given: Iterable[int] | None, most: int) -> None:
    """Raises ValueError for sizes of which no batch could be. most: rows that a batch may have."""
    if any(not 1 <= size <= most for size in given or ()):
        raise ValueError(f"graph_batch_sizes must be at least 1, at most max_num_seqs, {most}")


class BatchSizes:
    """Finds the captured size that has room for a batch."""

    def __init__(
        self, stage: str, sizes: Iterable[int] = (), *, unit: str = "rows", option: str = "graph_batch_sizes"
    ) -> None:
        """unit: what a size counts. option: the stage's option that says which sizes are captured."""
        self._stage = stage
        self._sizes = sorted(sizes)
        self._unit = unit
        self._option = option
        self._told = False

    def add(self, size: int) -> None:
        """A further size, known or not."""
        if size not in self._sizes:
            insort(self._sizes, size)

    def clear(self) -> None:
        self._sizes.clear()

    def padded(self, size: int) -> int | None:
        """The least captured one that is not below `size`; None if there is none: such a batch runs uncaptured, and the first that
        does, where any are captured, is logged."""
        place = bisect_left(self._sizes, size)
        if place < len(self._sizes):
            return self._sizes[place]
        if self._sizes and not self._told:
            self._told = True
            _log.warning(
                "%s: a batch of %d %s runs uncaptured, as do all of more than %d: raise %s.%s",
                self._stage,
                size,
                self._unit,
                self._sizes[-1],
                self._stage,
                self._option,
            )
        return None
