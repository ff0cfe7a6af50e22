"""Requests that read code frames, on the host: the record of each, and the rows that they have or wait for."""

from bisect import insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from omni_frames.inputs import Arrival


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


class RowQueue(Generic[RequestT]):
    """Rows go to the requests of lowest rank among those whose first frames came. A request keeps its row to its end.

    A row may be given on at once: whatever touches its memory runs on one stream, so new work follows the old.
    """

    def __init__(self, num_rows: int) -> None:
        self._free = list(range(num_rows - 1, -1, -1))
        self._waiting: list[RequestT] = []
        self._seated: list[RequestT] = []

    @property
    def seated(self) -> Sequence[RequestT]:
        """Requests that have a row, longest first."""
        return self._seated

    def join(self, request: RequestT) -> None:
        """The request wants a row."""
        insort(self._waiting, request, key=lambda waiting: waiting.rank)

    def seat(self) -> bool:
        """Gives free rows out. Returns whether anyone got one."""
        seated = len(self._seated)
        while self._free and self._waiting:
            request = self._waiting.pop(0)
            request.row = self._free.pop()
            self._seated.append(request)
        return len(self._seated) > seated

    def leave(self, request: RequestT) -> None:
        """The request needs no row any more."""
        if request.row is not None:
            self._free.append(request.row)
            self._seated.remove(request)
            request.row = None
        elif request in self._waiting:
            self._waiting.remove(request)
