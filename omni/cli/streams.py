"""The standard streams: closed from the start, full, or without a reader."""

import io
import os
import sys
from contextlib import suppress
from typing import TextIO

_closed: set[int] = set()


def reopen_closed_streams() -> None:
    """Opens the null device for closed streams: otherwise the next opened file would get the stream's number and output. From now
    on, output that stderr does not take is dropped, so that no answer is lost."""
    for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        if stream is None:
            _closed.add(number)
            with suppress(OSError):
                os.fstat(number)
                continue
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest free number, this one
    if 0 in _closed:
        sys.stdin = _null("r")
    if 1 in _closed:
        sys.stdout = _null("w")
    if 2 in _closed:
        sys.stderr = _null("w")
    else:
        raw = io.BufferedWriter(io.FileIO(2, "w", closefd=False))
        sys.stderr = _Reports(raw, sys.stderr.encoding, sys.stderr.errors, line_buffering=True)


def is_closed(number: int) -> bool:
    """Whether a descriptor is closed, or was when the process began."""
    if number in _closed:
        return True
    try:
        os.fstat(number)
    except OSError:
        return True
    return False


def stdout_problem() -> OSError | None:
    try:
        sys.stdout.flush()
    except OSError as error:
        return error
    return None


def drop(stream: TextIO) -> None:
    """Redirects the stream to the null device. Its buffer would fail again when the interpreter flushes it at its end."""
    with suppress(io.UnsupportedOperation):  # in tests it has no descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


class _Reports(io.TextIOWrapper):
    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            drop(self)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            drop(self)


def _null(mode: str) -> TextIO:
    return io.TextIOWrapper(io.FileIO(os.devnull, mode), "utf-8", "surrogateescape")
