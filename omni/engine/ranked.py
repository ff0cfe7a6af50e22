"""Things in the order of a rank."""

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")
Rank = tuple[int, int]


class Ranked(Generic[T]):
    """Things by key; the one of the lowest rank is `first`.

    Adding, removing and looking cost the logarithm of how many there are; being there costs nothing.
    """

    def __init__(self) -> None:
        self._things: dict[str, tuple[Rank, T]] = {}
        self._order: list[tuple[Rank, str]] = []
        """A heap. What was removed is still in it, and is told by being in `_things` no more, or with another rank."""

    def __len__(self) -> int:
        return len(self._things)

    def __contains__(self, key: str) -> bool:
        return key in self._things

    def __iter__(self) -> Iterator[T]:
        """In no order."""
        return iter([thing for _, thing in self._things.values()])

    def add(self, key: str, rank: Rank, thing: T) -> None:
        """No two have the same key."""
        self._things[key] = (rank, thing)
        heapq.heappush(self._order, (rank, key))

    def remove(self, key: str) -> T | None:
        """None if it is not there."""
        entry = self._things.pop(key, None)
        if len(self._order) > 2 * len(self._things) + 16:
            self._order = [(rank, one) for one, (rank, _) in self._things.items()]
            heapq.heapify(self._order)
        return entry[1] if entry is not None else None

    def first(self) -> T | None:
        """The one of the lowest rank, which stays. None if there is nothing."""
        while self._order:
            rank, key = self._order[0]
            entry = self._things.get(key)
            if entry is not None and entry[0] == rank:
                return entry[1]
            heapq.heappop(self._order)
        return None
