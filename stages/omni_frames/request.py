"""What the host knows of one request that reads code frames."""

from collections import deque
from dataclasses import dataclass, field
from typing import TypeVar

from omni_frames.arrival import Arrival


@dataclass(slots=True, eq=False)
class FrameRequest:
    """A request from `Open` to its end. A stage's own record adds to it.

    rank: who of those that wait for a row gets one: the lowest.
    row: its place in per-row device memory, or None while it has none. The record itself tells one owner of a row from
    the next: late results of a record that is not `live` are dropped.
    start, buffered: where the row's frames begin in its ring, and how many are in it.
    paused: a consumer is behind: nothing of it begins.
    alone: its last batch failed, so the next one is its own (`omni.stage.together`).
    done: frames that nothing is to be made of any more, but samples of some may be on their way.
    in_flight, samples: batches of it whose samples are not on the host yet, and how many came.
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
        """Whether every frame that will ever come is in the row's ring."""
        return not self.open_sources and not self.arrivals

    def forget(self, frames: int, capacity: int) -> None:
        """The oldest `frames` in the ring are no longer needed by anything that is to be launched."""
        self.start = (self.start + frames) % capacity
        self.buffered -= frames


RequestT = TypeVar("RequestT", bound=FrameRequest)
"""A stage's own record."""
