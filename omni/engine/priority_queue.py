"""A priority queue with removal by key."""

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")
ServingOrder = tuple[int, int]


class PriorityQueue(Generic[T]):
    """Items by key; `first` is the first in serving order. `add`, `remove` and `first` take logarithmic time."""

    def __init__(self) -> None:
        self._items: dict[str, tuple[ServingOrder, T]] = {}
        self._heap: list[tuple[ServingOrder, str]] = []
        """A heap. Removed items stay in it, recognized by their absence from `_items` or by another order in it."""

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: str) -> bool:
        return key in self._items

    def __iter__(self) -> Iterator[T]:
        """Iterates in no particular order."""
        return iter([item for _, item in self._items.values()])

    def add(self, key: str, order: ServingOrder, item: T) -> None:
        """Adds an item under a new key."""
        self._items[key] = (order, item)
        heapq.heappush(self._heap, (order, key))

    def remove(self, key: str) -> T | None:
        """Removes and returns an item; None if the key is absent."""
        entry = self._items.pop(key, None)
        if len(self._heap) > 2 * len(self._items) + 16:
            self._heap = [(order, one) for one, (order, _) in self._items.items()]
            heapq.heapify(self._heap)
        return entry[1] if entry is not None else None

    def first(self) -> T | None:
        """The first item in serving order, which is not removed; None if there are no items."""
        while self._heap:
            order, key = self._heap[0]
            entry = self._items.get(key)
            if entry is not None and entry[0] == order:
                return entry[1]
            heapq.heappop(self._heap)
        return None
