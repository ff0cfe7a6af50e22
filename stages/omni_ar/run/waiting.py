"""Requests that wait for a row or for blocks."""

import heapq
import itertools

from omni_ar.run.request import ArRequest


class WaitingQueue:
    """The lowest rank first, first come first served within a rank. Joining and leaving cost the logarithm of how many wait."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, ...], int, ArRequest]] = []
        self._entries: dict[ArRequest, int] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request: ArRequest) -> bool:
        return request in self._entries

    def add(self, request: ArRequest) -> None:
        """A no-op for one that waits already."""
        if request not in self._entries:
            number = next(self._numbers)
            self._entries[request] = number
            heapq.heappush(self._heap, (request.rank, number, request))

    def discard(self, request: ArRequest) -> None:
        self._entries.pop(request, None)
        # An entry that left stays in the heap, and keeps its request alive, until it surfaces or this clears it out.
        if len(self._heap) > 2 * len(self._entries) + 16:
            self._heap = [(one.rank, number, one) for one, number in self._entries.items()]
            heapq.heapify(self._heap)

    def head(self) -> ArRequest | None:
        """Who is next."""
        while self._heap:
            _, number, request = self._heap[0]
            if self._entries.get(request) == number:
                return request
            heapq.heappop(self._heap)
        return None
