"""Items in the order of their rank."""

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")
Rank = tuple[int, int]


class Ranked(Generic[T]):
    """Items by key; `first` has the lowest rank. `add`, `remove` and `first` take logarithmic time."""

    def __init__(self) -> None:
        self._items: dict[str, tuple[Rank, T]] = {}
        self._order: list[tuple[Rank, str]] = []
        """A heap. Removed items stay in it, recognized by their absence from `_items` or by another rank there."""

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: str) -> bool:
        return key in self._items

    def __iter__(self) -> Iterator[T]:
        """Iterates in no particular order."""
        return iter([item for _, item in self._items.values()])

    def add(self, key: str, rank: Rank, item: T) -> None:
        """Adds an item under a new key."""
        self._items[key] = (rank, item)
        heapq.heappush(self._order, (rank, key))

    def remove(self, key: str) -> T | None:
        """Removes and returns an item; None if the key is absent."""
        entry = self._items.pop(key, None)
        if len(self._order) > 2 * len(self._items) + 16:
            self._order = [(rank, one) for one, (rank, _) in self._items.items()]
            heapq.heapify(self._order)
        return entry[1] if entry is not None else None

    def first(self) -> T | None:
        """The item of the lowest rank, which is not removed; None if there are no items."""
        while self._order:
            rank, key = self._order[0]
            entry = self._items.get(key)
            if entry is not None and entry[0] == rank:
                return entry[1]
            heapq.heappop(self._order)
        return None
