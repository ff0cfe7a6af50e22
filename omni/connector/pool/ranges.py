"""Ranges of a pool."""

from bisect import bisect

_ALIGNMENT = 256
"""Ranges are multiples of this number of bytes: a GPU copies aligned memory faster."""


def aligned_down(nbytes: int) -> int:
    """`nbytes` rounded down to whole ranges."""
    return nbytes // _ALIGNMENT * _ALIGNMENT


class RangeAllocator:
    """Ranges of a pool, first fit."""

    def __init__(self, nbytes: int) -> None:
        self._free = [(0, aligned_down(nbytes))]
        """Free ranges `(start, end)` in order, none adjacent to the next."""

    def acquire(self, nbytes: int) -> int | None:
        """The first byte of a range; None if there is none."""
        size = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        for place, (start, end) in enumerate(self._free):
            if end - start >= size:
                self._free[place : place + 1] = [(start + size, end)] if end - start > size else []
                return start
        return None

    def release(self, start: int, nbytes: int) -> None:
        end = start + -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        place = bisect(self._free, (start, end))
        if place < len(self._free) and self._free[place][0] == end:
            end = self._free.pop(place)[1]
        if place and self._free[place - 1][1] == start:
            start = self._free.pop(place - 1)[0]
            place -= 1
        self._free.insert(place, (start, end))
