"""Space for labels beside each other."""


class Row:
    """Labels that do not overlap, between two borders."""

    def __init__(self, left: float, right: float) -> None:
        self._left = left
        self._right = right
        self._taken: list[tuple[float, float]] = []

    def take(self, middle: float, width: float) -> bool:
        """Reserves the space for a label. Returns whether it was free."""
        first, last = middle - width / 2 - 4, middle + width / 2 + 4
        if first < self._left - 60 or last > self._right + 10:
            return False
        if any(first < end and start < last for start, end in self._taken):
            return False
        self._taken.append((first, last))
        return True
