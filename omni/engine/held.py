"""Host memory of waiting requests."""

from collections.abc import Sequence

Held = Sequence[tuple[object, int]]
"""Pairs of an object and its bytes."""


class Ledger:
    """Counts every object once, even if several requests hold it, such as one picture."""

    def __init__(self) -> None:
        self.bytes = 0
        # Keeps the objects, so that no new object gets the id of a freed one.
        self._holders: dict[int, tuple[object, int, int]] = {}

    def add(self, held: Held) -> None:
        for thing, size in held:
            _, counted, holders = self._holders.get(id(thing), (thing, size, 0))
            self._holders[id(thing)] = (thing, counted, holders + 1)
            self.bytes += 0 if holders else counted

    def remove(self, held: Held) -> None:
        """held: the value that was added."""
        for thing, _ in held:
            _, counted, holders = self._holders.pop(id(thing))
            if holders > 1:
                self._holders[id(thing)] = (thing, counted, holders - 1)
            else:
                self.bytes -= counted
