"""Counts of durations by length, as counters of a stage: percentiles of a part of the run follow from two readings."""

from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate
from typing import Self

BOUNDS_US = (*range(10, 200, 10), *range(200, 400, 25), 400, 500, 700, 1000, 1500, 2000, 3000, 5000, 10_000)
"""Upper bounds of all groups of durations but the last, in microseconds."""
_BOUNDS_NS = tuple(1000 * bound for bound in BOUNDS_US)
_LAST = "more"


class DurationCounts:
    """counts: number of durations in each group, the shortest first. nanoseconds: sum of all."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_US) + 1)
        self.nanoseconds = 0

    @classmethod
    def of(cls, name: str, numbers: Mapping[str, int], before: Mapping[str, int] | None = None) -> Self:
        """The durations of this name in `Omni.counters()` of a stage. before: an earlier reading, whose durations are left out."""
        earlier = before or {}
        found = cls()
        found.nanoseconds = 1000 * (numbers.get(f"{name}_us", 0) - earlier.get(f"{name}_us", 0))
        found.counts = [numbers.get(each, 0) - earlier.get(each, 0) for each in _names(name)]
        return found

    def add(self, nanoseconds: int) -> None:
        self.nanoseconds += nanoseconds
        self.counts[bisect_left(_BOUNDS_NS, nanoseconds)] += 1

    def numbers(self, name: str) -> dict[str, int]:
        """`name_us`, the sum in microseconds, and the groups that are not empty: `name_us_150` has the durations of up to 150
        microseconds that no shorter group has, `name_us_more` those above all bounds."""
        groups = {each: count for each, count in zip(_names(name), self.counts, strict=True) if count}
        return {f"{name}_us": self.nanoseconds // 1000} | groups

    def percentile(self, share: float) -> float | None:
        """A percentile in microseconds, by linear interpolation inside of a group; above all bounds the last bound. None without
        durations."""
        place = share * sum(self.counts)
        if not place:
            return None
        groups = zip(self.counts, accumulate(self.counts), (0, *BOUNDS_US), BOUNDS_US, strict=False)
        for count, until, lower, upper in groups:
            if until >= place:
                return float(upper - (upper - lower) * (until - place) / count)
        return float(BOUNDS_US[-1])


def _names(name: str) -> list[str]:
    return [f"{name}_us_{bound}" for bound in (*BOUNDS_US, _LAST)]
