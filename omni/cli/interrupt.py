"""SIGINT (Ctrl-C) and SIGTERM end a command, with one line on stderr and exit code 130 or 143.

| while | the first | the second |
|---|---|---|
| inside `unwinding`: an answer comes in, a file is written | raises KeyboardInterrupt in the main thread | ends the process |
| anything else: imports, plugins, weights, graphs, the interpreter's end | ends the process | |

During the start there is nothing to release, and libraries that catch everything, or wait for their threads, could keep an
exception from ending the process. For the same reason unwinding is limited to `LIMIT` seconds.

A library may not return to Python for long, so a thread gets signals too, and ends the process if necessary.
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
"""Seconds that unwinding may take after a signal."""

_LINES = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class _State:
    """State of the process."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.unwinds = False
        self.raised = False
        self.ending = threading.RLock()


_state = _State()


def install() -> None:
    """Handles signals from now on, except those that the parent process set to be ignored. Needs the main thread."""
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
    """A context for code that releases something: within it, the first signal raises KeyboardInterrupt."""
    _state.unwinds = True
    try:
        yield
    finally:
        _state.unwinds = False


def came() -> bool:
    """Whether a signal came, even if its exception was swallowed."""
    return _state.first is not None


def code() -> int:
    """The exit code of a process ended by a signal."""
    return 128 + (signal.SIGINT if _state.first is None else _state.first)


def end() -> NoReturn:
    """Ends the process at once: waits for no thread, flushes nothing."""
    # Never released: of threads that end the process together, only one prints. Reentrant for an interrupting handler.
    _state.ending.acquire()
    line = _LINES[signal.Signals(code() - 128)] + "\n"
    with suppress(OSError):
        # Must not wait: there may be no reader.
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
    """A signal may come in a finalizer, whose exceptions are printed and dropped."""
    if came() and issubclass(args.exc_type, KeyboardInterrupt):
        end()
    sys.__unraisablehook__(args)
