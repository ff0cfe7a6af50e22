"""What the host knows of one request at the vocoder."""

from collections import deque
from dataclasses import dataclass, field

from torch import Tensor

from omni.device import COMPLETED, Event
from omni.payload import PageSlice
from omni.stage import Feed, release
from omni_vocoder.chunks import ChunkSizes


@dataclass(slots=True, eq=False)
class Arrival:
    """Frames that came and are not all copied yet. taken: how many are. after: the last copy that reads them."""

    message: Feed
    codes: PageSlice | Tensor
    count: int
    taken: int = 0
    after: Event = COMPLETED

    def let_go(self) -> None:
        release(self.message, self.after)


@dataclass(slots=True, eq=False)
class VocoderRequest:
    """A request from `Open` to its end.

    rank: who of those that wait for a row gets one: the lowest.
    row: its place in per-row device memory, or None while it has none. The record itself tells one owner of a row from
    the next: late results of a record that is not `live` are dropped.
    paused: a consumer is behind: no chunk of it is decoded.
    start, buffered: where the row's frames begin in its ring, and how many are in it.
    """

    id: str
    open_sources: set[str]
    rank: tuple[int, int] = (0, 0)
    arrivals: deque[Arrival] = field(default_factory=deque)
    row: int | None = None
    live: bool = True
    start: int = 0
    buffered: int = 0
    started: bool = False
    paused: bool = False
    in_flight: bool = False
    alone: bool = False
    """A step that it was part of could not be prepared: the next is its own, so that only what is at fault fails."""
    frames: int = 0
    samples: int = 0

    @property
    def ended(self) -> bool:
        """Whether every frame that will ever come is in the row's ring."""
        return not self.open_sources and not self.arrivals

    def finished(self, sizes: ChunkSizes) -> bool:
        """Whether there is nothing left to wait for."""
        return self.ended and not self.in_flight and not self.next_chunk(sizes)

    def next_chunk(self, sizes: ChunkSizes) -> int:
        """How many frames to decode now; 0 if it is not time, or will never be."""
        wanted, fewest = (sizes.later, 1) if self.started else (sizes.first, sizes.fewest)
        if self.in_flight or self.buffered < (fewest if self.ended else wanted):
            return 0
        return min(wanted, self.buffered)

    def consume(self, frames: int, capacity: int) -> None:
        """A step that decodes the oldest `frames` frames has been launched."""
        self.start = (self.start + frames) % capacity
        self.buffered -= frames
        self.started = self.in_flight = True
        self.alone = False
