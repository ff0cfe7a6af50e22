"""Ends an engine whose loop hangs: in a call of a driver or of a stage that does not return.

A launch also hangs while the device's queue is full of hung steps. The loop itself notices only hung steps with other ranks
(`StepWatch`).
"""

import threading
import time
from collections.abc import Callable

from omni.engine import Engine
from omni.errors import LostRankError
from omni.parallel.rendezvous import STEP_SECONDS
from omni.parallel.watch import REMEDY, HangWatch

_LOOK_SECONDS = 1.0
_WHOLE_SECONDS = 300.0
"""Limit on a CUDA device without ranks of cut stages. A call may compile a kernel: the slowest one so far took 20 s."""


def turn_limit(chosen: float | None, device: str, *, cut: bool) -> float | None:
    """Seconds for a turn; None for any time. chosen: `engine.turn_seconds`. device: its type. cut: whether the engine has ranks of
    cut stages."""
    if chosen is not None or device != "cuda":
        # On the CPU a step runs in the turn that launches it, for any time, and waits for other ranks with a limit of its own.
        return chosen
    return STEP_SECONDS if cut else _WHOLE_SECONDS


class TurnWatch:
    """A thread beside the loop. It ends with the process."""

    def __init__(
        self,
        engine: Engine,
        limit: float,
        end: Callable[[Exception], object],
        seconds: Callable[[], float] = time.monotonic,
        *,
        cut: bool,
    ) -> None:
        """limit: seconds for a turn. end: called once, in the thread, with the error of a turn that takes longer. cut: as for
        `turn_limit`."""
        self._engine = engine
        self._cut = cut
        self._limit = limit
        self._end = end
        self._watch = HangWatch(limit, seconds)

    def start(self) -> None:
        threading.Thread(target=self._run, name="omni-turn-watch", daemon=True).start()

    def look(self) -> bool:
        """Returns whether the loop hangs."""
        if not self._watch.hangs(self._engine.turn):
            return False
        problem = f"a turn of the engine's loop has taken longer than {self._limit:g} s, as if its device"
        if self._cut:
            self._end(LostRankError(f"{problem} hung in a step with other ranks; {REMEDY}"))
        else:
            self._end(TimeoutError(f"{problem} or a stage hung; raise engine.turn_seconds if a stage works so long"))
        return True

    def _run(self) -> None:
        while not self.look():
            time.sleep(_LOOK_SECONDS)
