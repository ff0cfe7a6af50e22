"""Sets of times, as ordered, disjoint intervals."""

from bisect import bisect_right
from collections.abc import Iterable

from omni.timeline.trace import Interval


class Busy:
    """The union of intervals."""

    def __init__(self, intervals: Iterable[Interval]) -> None:
        self.intervals: list[Interval] = []
        for one in sorted(intervals, key=lambda interval: interval.start):
            if self.intervals and one.start <= self.intervals[-1].end:
                last = self.intervals[-1]
                self.intervals[-1] = Interval(last.start, max(last.end, one.end))
            else:
                self.intervals.append(one)

    @property
    def total(self) -> int:
        return sum(one.length for one in self.intervals)

    def shared(self, other: "Busy") -> int:
        """The length of the intersection."""
        total, mine, theirs = 0, 0, 0
        while mine < len(self.intervals) and theirs < len(other.intervals):
            one, two = self.intervals[mine], other.intervals[theirs]
            total += max(0, min(one.end, two.end) - max(one.start, two.start))
            if one.end <= two.end:
                mine += 1
            else:
                theirs += 1
        return total

    def within(self, window: Interval) -> list[Interval]:
        """The intersection with `window`."""
        first = bisect_right(self.intervals, window.start, key=lambda interval: interval.end)
        parts = []
        for one in self.intervals[first:]:
            if one.start >= window.end:
                break
            parts.append(Interval(max(one.start, window.start), min(one.end, window.end)))
        return [part for part in parts if part.length > 0]

    def gaps(self, window: Interval) -> list[Interval]:
        """The parts of `window` outside the set."""
        gaps, at = [], window.start
        for part in self.within(window):
            if part.start > at:
                gaps.append(Interval(at, part.start))
            at = part.end
        if window.end > at:
            gaps.append(Interval(at, window.end))
        return gaps
