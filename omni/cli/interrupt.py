"""Signals that ask a command to end: SIGINT (Ctrl-C) and SIGTERM. One line on stderr, and exit code 130 or 143.

| while | the first | the second |
|---|---|---|
| inside `unwinding`: an answer comes in, a file is written | raises KeyboardInterrupt in the main thread | ends the process |
| anything else: imports, plugins, weights, graphs, the interpreter's end | ends the process | |

What starts has nothing to give back, and libraries that catch everything, or wait for their threads, could keep an exception from
ending it. Unwinding has `LIMIT` seconds, for the same reason.

The process may be in a library that does not come back to Python for long: a thread hears of signals too, and ends it from there.
"""

import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

LIMIT = 10.0
"""Seconds."""

_LINES = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class _State:
    """Of the process, as signals are."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.unwinds = False
        self.raised = False
        self.ending = threading.RLock()


_state = _State()


def install() -> None:
    """Heeds signals from now on, but for those that whoever started this process had it ignore. Needs the main thread."""
    for number in _LINES:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _handle)
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reads,), name="omni-signals", daemon=True).start()
    sys.unraisablehook = _unraisable


@contextmanager
def unwinding() -> Iterator[None]:
    """For what has something to give back: the first signal raises KeyboardInterrupt here."""
    _state.unwinds = True
    try:
        yield
    finally:
        _state.unwinds = False


def came() -> bool:
    """Whether a signal came, whatever became of its exception."""
    return _state.first is not None


def code() -> int:
    """The exit code of a process that a signal ended."""
    return 128 + (signal.SIGINT if _state.first is None else _state.first)


def end() -> NoReturn:
    """Ends the process, which waits for no thread and flushes nothing."""
    # Never let go: of those who end the process at the same time, one says so. A handler that interrupts it has the lock too.
    _state.ending.acquire()
    line = _LINES[signal.Signals(code() - 128)] + "\n"
    with suppress(OSError):
        # Nobody may be reading: this must not wait.
        if select.select([], [2], [], 0)[1]:
            os.write(2, (("\n" if os.isatty(2) else "") + line).encode())
    os._exit(code())


def _handle(number: int, frame: FrameType | None) -> None:
    if _state.first is None:
        _state.first = number
    if _state.unwinds and not _state.raised:
        _state.raised = True
        raise KeyboardInterrupt
    end()


def _watch(reads: int) -> None:
    limit: float | None = None
    while select.select([reads], [], [], limit)[0]:
        for number in os.read(reads, 64):
            if number not in _LINES or signal.getsignal(number) is not _handle:
                continue
            if _state.first is None:
                _state.first = number
            if limit is not None or not _state.unwinds:
                end()
            limit = LIMIT
    end()


def _unraisable(args: "UnraisableHookArgs") -> None:
    """A finalizer may run wherever a signal comes, and what it raises is printed and forgotten."""
    if came() and issubclass(args.exc_type, KeyboardInterrupt):
        end()
    sys.__unraisablehook__(args)
