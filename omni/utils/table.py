"""Text in columns."""

from collections.abc import Container, Sequence


def columns(rows: Sequence[Sequence[str]], right: Container[int] = (), indent: str = "  ") -> list[str]:
    """Lines of a table. right: right-aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [indent + "  ".join(_cells(row, widths, right)).rstrip() for row in rows]


def _cells(row: Sequence[str], widths: Sequence[int], right: Container[int]) -> list[str]:
    pairs = enumerate(zip(row, widths, strict=True))
    return [cell.rjust(width) if number in right else cell.ljust(width) for number, (cell, width) in pairs]
