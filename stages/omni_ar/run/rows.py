"""Rows: a request's stable place in per-row device state."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """A stable place in per-row device state. generation: tells a row's owner from the one before."""

    index: int
    generation: int


class RowTable:
    """Hands out rows. A request keeps its row from admission to its end."""

    def __init__(self, num_rows: int) -> None:
        self._free = list(range(num_rows - 1, -1, -1))
        self._generations = [0] * num_rows

    @property
    def used(self) -> int:
        return len(self._generations) - len(self._free)

    @property
    def available(self) -> int:
        return len(self._free)

    def allocate(self) -> Row:
        index = self._free.pop()
        return Row(index, self._generations[index])

    def release(self, row: Row) -> None:
        """The row is somebody else's next. Results for it that are still under way are to be dropped: they tell by the generation.

        Steps in flight may still write its state. Whoever gets it sets the state up on the same stream, so after them.
        """
        self._generations[row.index] += 1
        self._free.append(row.index)

    def current(self, row: Row) -> bool:
        """Whether the row still belongs to the request that was given it."""
        return self._generations[row.index] == row.generation
