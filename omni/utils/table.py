"""Formats text in columns."""

from collections.abc import Container, Sequence


def columns(lines: Sequence[Sequence[str]], right: Container[int] = (), indent: str = "  ") -> list[str]:
    """The lines of a table, padded. right: right-aligned columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [indent + "  ".join(_cells(line, widths, right)).rstrip() for line in lines]


def _cells(line: Sequence[str], widths: Sequence[int], right: Container[int]) -> list[str]:
    pairs = enumerate(zip(line, widths, strict=True))
    return [cell.rjust(width) if number in right else cell.ljust(width) for number, (cell, width) in pairs]
