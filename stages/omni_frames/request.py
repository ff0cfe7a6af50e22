"""A request that reads code frames, as the host knows it."""

from collections import deque
from dataclasses import dataclass, field
from typing import TypeVar

from omni_frames.arrival import Arrival


@dataclass(slots=True, eq=False)
class FrameRequest:
    """A request from `Open` to its end. A stage's own record adds to it.

    rank: of the requests that wait for a row, the lowest gets one.
    row: its place in per-row device memory, or None while it has none. Late results of a record that is not `live` are dropped,
    whoever owns the row by then.
    start, buffered: the beginning of the row's frames in its ring, and their number.
    paused: a consumer is behind: nothing of it begins.
    alone: its last batch failed, so the next one is its own (`omni.stage.together`).
    done: frames that were decoded; samples of some may be on their way.
    in_flight: batches of it whose samples are not on the host yet. samples: those that arrived.
    """

    id: str
    open_sources: set[str]
    rank: tuple[int, int] = (0, 0)
    arrivals: deque[Arrival] = field(default_factory=deque)
    row: int | None = None
    live: bool = True
    start: int = 0
    buffered: int = 0
    paused: bool = False
    alone: bool = False
    done: int = 0
    in_flight: int = 0
    samples: int = 0

    @property
    def ended(self) -> bool:
        """Whether its last frame is in the row's ring."""
        return not self.open_sources and not self.arrivals

    def forget(self, frames: int, capacity: int) -> None:
        """Drops the oldest `frames` from the ring: no later launch needs them."""
        self.start = (self.start + frames) % capacity
        self.buffered -= frames


RequestT = TypeVar("RequestT", bound=FrameRequest)
"""A stage's own record."""
