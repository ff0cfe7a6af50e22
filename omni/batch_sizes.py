"""Sizes that steps are captured for: numbers of rows, or whatever else a stage's batches are measured in."""

import logging
from bisect import bisect_left, insort
from collections.abc import Iterable

_log = logging.getLogger(__name__)

_MOST_CAPTURED = 512
_FEWEST_TOKENS, _MOST_TOKENS = 16, 8192
_STEPS = {256: 2, 1024: 4}
"""From so many tokens on, into how many steps the way to the next power of two is divided: the device then has more to do with each
token than the host with a batch."""


def captured_sizes(given: Iterable[int] | None, most: int) -> tuple[int, ...]:
    """`given`, or, where a user leaves the choice open, sizes up to `most`: closer together where a step's time depends more on how
    many rows it has. The largest first, to capture in this order: what a smaller step allocates fits where a larger one's was."""
    if given is not None:
        return _largest_first(given)
    sizes = {1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, _MOST_CAPTURED + 1, 32)}
    return _largest_first({size for size in sizes if size < most} | {min(most, _MOST_CAPTURED)})


def captured_lengths(given: Iterable[int] | None, most: int) -> tuple[int, ...]:
    """As `captured_sizes`, of batches that are measured in tokens: by default powers of two, and some between where a step's time
    depends on how many there are, up to `most`, but not beyond where launches no longer matter."""
    if given is not None:
        return _largest_first(given)
    most = min(most, _MOST_TOKENS)
    lengths = {most}
    power, steps = _FEWEST_TOKENS, 1
    while power < most:
        steps = _STEPS.get(power, steps)
        lengths |= {power + power * step // steps for step in range(steps)}
        power *= 2
    return _largest_first(length for length in lengths if length <= most)


def check_sizes(
    given: Iterable[int] | None, most: int, option: str = "graph_batch_sizes", bound: str = "max_num_seqs"
) -> None:
    """Raises ValueError for sizes of which no batch could be. most: what a batch may have. option, bound: the names of the options
    that say which sizes are captured, and what `most` is."""
    if any(not 1 <= size <= most for size in given or ()):
        raise ValueError(f"{option} must be at least 1, at most {bound}, {most}")


def _largest_first(sizes: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(sizes), reverse=True))


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
