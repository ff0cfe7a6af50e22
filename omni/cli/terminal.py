"""Prints what standard output's encoding allows."""

import sys

import msgspec
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


def echo_json(value: object) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value)).decode())
