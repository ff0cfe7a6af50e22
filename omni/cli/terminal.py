"""The encoding of standard output, and tables."""

import sys

import typer

_LINES = "┌┐└┘├┤┬┴┼│─▼"


def takes_lines() -> bool:
    """Whether standard output's encoding has the characters of drawings."""
    try:
        _LINES.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def echo(text: str) -> None:
    """Prints text, with escapes for characters that the encoding lacks."""
    encoding = sys.stdout.encoding or "ascii"
    typer.echo(text.encode(encoding, "backslashreplace").decode(encoding))


def columns(rows: list[tuple[str, ...]], right: tuple[int, ...] = (), indent: str = "  ") -> list[str]:
    """Lines of a table. right: right-aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [indent + "  ".join(_cells(row, widths, right)).rstrip() for row in rows]


def _cells(row: tuple[str, ...], widths: list[int], right: tuple[int, ...]) -> list[str]:
    pairs = enumerate(zip(row, widths, strict=True))
    return [cell.rjust(width) if number in right else cell.ljust(width) for number, (cell, width) in pairs]
