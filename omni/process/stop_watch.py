"""Ends engines whose process is stopped, as by SIGSTOP, while a request or the start waits for them.

Otherwise such an engine is noticed only if another rank waits for it.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from omni.parallel.watch import HangWatch

STOPPED_SECONDS = 60.0
"""Time for which a process may be stopped while it is awaited."""

_LOOK_SECONDS = 1.0


class StoppableEngine(Protocol):
    """The part of a `RemoteEngine` that a `StoppedEngineWatch` reads."""

    @property
    def awaited(self) -> bool: ...

    @property
    def stopped(self) -> bool: ...

    def give_up(self, why: str = "") -> None: ...


class StoppedEngineWatch:
    """Watches the engines of one start group."""

    def __init__(
        self,
        engines: Callable[[], Sequence[StoppableEngine]],
        limit: float,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """engines: gives the present ones in the group's order, or none if a part is missing. limit: seconds for which one may be
        stopped while another or itself is awaited."""
        self._engines = engines
        self._limit = limit
        self._seconds = seconds
        self._watches: list[HangWatch] = []

    def look(self) -> None:
        """Ends each that was stopped for longer."""
        engines = self._engines()
        awaited = any(engine.awaited for engine in engines)
        self._watches += [HangWatch(self._limit, self._seconds) for _ in engines[len(self._watches) :]]
        for watch, engine in zip(self._watches, engines, strict=False):
            if watch.hangs(engine if awaited and engine.stopped else None):
                engine.give_up(f"since it was stopped for {self._limit:g} s while it was awaited")


def start_watching(watches: Sequence[StoppedEngineWatch], closing: threading.Event) -> threading.Thread:
    """The watching thread, until `closing`."""

    def run() -> None:
        while not closing.wait(_LOOK_SECONDS):
            for watch in watches:
                watch.look()

    thread = threading.Thread(target=run, name="omni-stop-watch", daemon=True)
    thread.start()
    return thread
