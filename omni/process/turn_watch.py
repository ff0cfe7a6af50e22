"""Ends an engine with ranks of cut stages whose loop hangs.

A step that hangs on the device is noticed by the loop (`StepWatch`). But a launch waits while the device's queue is full, and then
the loop itself hangs, with no error of its own.
"""

import threading
import time
from collections.abc import Callable

from omni.engine import Engine
from omni.errors import LostRankError
from omni.parallel.watch import REMEDY, HangWatch

_LOOK_SECONDS = 1.0


class TurnWatch:
    """A thread beside the loop. It ends with the process."""

    def __init__(
        self,
        engine: Engine,
        limit: float,
        end: Callable[[LostRankError], object],
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """limit: seconds for a turn. end: called once, in the thread, with the error of a turn that takes longer."""
        self._engine = engine
        self._limit = limit
        self._end = end
        self._watch = HangWatch(limit, seconds)

    def start(self) -> None:
        threading.Thread(target=self._run, name="omni-turn-watch", daemon=True).start()

    def look(self) -> bool:
        """Returns whether the loop hangs."""
        if not self._watch.hangs(self._engine.turn):
            return False
        problem = f"a turn of the engine's loop has taken longer than {self._limit:g} s, as if its device hung"
        self._end(LostRankError(f"{problem} in a step with other ranks; {REMEDY}"))
        return True

    def _run(self) -> None:
        while not self.look():
            time.sleep(_LOOK_SECONDS)
