"""Detects hangs. On CUDA only the device waits for other ranks, and NCCL's time limits cover neither captured graphs nor kernels
that read the memory of another device."""

from collections.abc import Callable

from omni.errors import LostRankError
from omni.parallel.ranks import Ranks

_MOST_SECONDS = 2.0
"""Maximum time counted between two checks: this process may have been stopped, together with the other ranks."""
REMEDY = "see the logs of the others; the stage works again once all of its engines are started again"


class HangWatch:
    """Checks an object that changes as long as nothing hangs."""

    def __init__(self, limit: float, seconds: Callable[[], float]) -> None:
        """limit: seconds without a change. seconds: gives the present time, as `Device.seconds`."""
        self._limit = limit
        self._seconds = seconds
        self._seen: object | None = None
        self._looked_at = 0.0
        self._unchanged = 0.0

    def hangs(self, present: object | None) -> bool:
        """Whether checks have found the same object for longer than the limit. None means that nothing can hang."""
        if present is None:
            self._seen = None
            return False
        now = self._seconds()
        if present is not self._seen:
            self._seen, self._unchanged = present, 0.0
        else:
            self._unchanged += min(now - self._looked_at, _MOST_SECONDS)
        self._looked_at = now
        return self._unchanged > self._limit


class StepWatch:
    """Watches the steps that a rank has launched."""

    def __init__(self, ranks: Ranks, seconds: Callable[[], float]) -> None:
        self._ranks = ranks
        self._watch = HangWatch(ranks.step_seconds, seconds)

    def look(self, oldest: object | None, complete: Callable[[], bool] = lambda: False) -> None:
        """oldest: the oldest step that is not complete, None if all are. complete: a last check of that step before an error.
        Raises LostRankError for one that is not complete within `Ranks.step_seconds`, counted from when it became the oldest
        one."""
        if self._watch.hangs(oldest) and not complete():
            ranks = self._ranks
            problem = f"rank {ranks.rank} of {ranks.size} has not completed a step in {ranks.step_seconds:g} s"
            raise LostRankError(f"{problem}, as if another rank of the stage hung; {REMEDY}")
