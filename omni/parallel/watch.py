"""Notices a step that hangs. On CUDA the device alone waits for other ranks, and no time limit of NCCL covers captured graphs or
kernels that read the memory of another device."""

from collections.abc import Callable

from omni.errors import LostRankError
from omni.parallel.ranks import Ranks

_MOST_SECONDS = 1.0
"""Counted between two looks. The host may have been stopped itself, and the other ranks with it."""


class StepWatch:
    """Of the steps that a rank has launched. It is shown the oldest one that is not complete, over and over."""

    def __init__(self, ranks: Ranks, seconds: Callable[[], float]) -> None:
        """seconds: gives the present time, as `Device.seconds`."""
        self._ranks = ranks
        self._seconds = seconds
        self._oldest: object | None = None
        self._looked_at = 0.0
        self._waited = 0.0

    def look(self, oldest: object | None) -> None:
        """oldest: the same object until the step is complete; None if all are. Raises LostRankError if that takes longer than
        `Ranks.step_seconds`, counted from when it became the oldest one."""
        if oldest is None:
            self._oldest = None
            return
        now = self._seconds()
        if oldest is not self._oldest:
            self._oldest, self._waited = oldest, 0.0
        else:
            self._waited += min(now - self._looked_at, _MOST_SECONDS)
        self._looked_at = now
        limit = self._ranks.step_seconds
        if self._waited > limit:
            problem = f"rank {self._ranks.rank} of {self._ranks.size} has not completed a step in {limit:g} s"
            remedy = "see the logs of the others; the stage works again once all of its engines are started again"
            raise LostRankError(f"{problem}, as if another rank of the stage hung; {remedy}")
