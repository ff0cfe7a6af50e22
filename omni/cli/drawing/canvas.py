"""A grid of characters. Lines of one owner join where they meet; others pass under one another."""

from enum import IntFlag


class _Arm(IntFlag):
    UP = 1
    DOWN = 2
    LEFT = 4
    RIGHT = 8


_UP, _DOWN, _LEFT, _RIGHT = _Arm.UP, _Arm.DOWN, _Arm.LEFT, _Arm.RIGHT
_SHAPES = " │││─┘┐┤─└┌├─┴┬┼"
"""By arms."""
_ASCII = str.maketrans({**dict.fromkeys("┌┐└┘├┤┬┴┼", "+"), "│": "|", "─": "-", "▼": "v"})


class Canvas:
    """Rows count downwards, columns to the right, from 0."""

    def __init__(self) -> None:
        self._texts: dict[tuple[int, int], str] = {}
        self._arms: dict[tuple[int, int], _Arm] = {}
        self._owners: dict[tuple[int, int], str] = {}

    def text(self, row: int, column: int, text: str) -> None:
        for offset, character in enumerate(text):
            self._texts[row, column + offset] = character

    def across(self, row: int, first: int, last: int, owner: str) -> None:
        """A line from column `first` to column `last`. Lines of one owner join where they meet."""
        for column in range(first, last + 1):
            left = _LEFT if column > first else _Arm(0)
            self._add(row, column, left | (_RIGHT if column < last else _Arm(0)), owner)

    def down(self, column: int, first: int, last: int, owner: str, *, from_above: bool = False) -> None:
        """A line from row `first` (or the row above it) to row `last`, over earlier lines of other owners."""
        for row in range(first, last + 1):
            up = _UP if row > first or from_above else _Arm(0)
            self._add(row, column, up | (_DOWN if row < last else _Arm(0)), owner)

    def box(self, row: int, column: int, lines: tuple[str, ...]) -> None:
        """A frame around `lines`, with one space beside the longest. row, column: of its upper left corner."""
        width = max(map(len, lines)) + 4
        bottom, right, owner = row + len(lines) + 1, column + width - 1, f"box at {row}, {column}"
        self.across(row, column, right, owner)
        self.across(bottom, column, right, owner)
        self.down(column, row, bottom, owner)
        self.down(right, row, bottom, owner)
        for offset, line in enumerate(lines):
            self.text(row + 1 + offset, column + 2, line)

    def leave(self, row: int, column: int) -> None:
        """Adds a line downwards to a frame."""
        self._arms[row, column] |= _DOWN

    def render(self, *, ascii_only: bool) -> str:
        cells = {place: _SHAPES[arms] for place, arms in self._arms.items() if arms} | self._texts
        rows = [[column for at, column in cells if at == row] for row in range(1 + max(row for row, _ in cells))]
        lines = [
            "".join(cells.get((row, column), " ") for column in range(1 + max(columns, default=-1)))
            for row, columns in enumerate(rows)
        ]
        drawn = "\n".join(lines)
        return drawn.translate(_ASCII) if ascii_only else drawn

    def _add(self, row: int, column: int, arms: _Arm, owner: str) -> None:
        place = row, column
        if self._owners.setdefault(place, owner) == owner:
            self._arms[place] = self._arms.get(place, _Arm(0)) | arms
        else:
            self._owners[place], self._arms[place] = owner, arms
