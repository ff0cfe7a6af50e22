"""What the host knows of a request, and of the work that requests share."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from omni.stage import Feed
from omni_encoder.inputs import MediaItem


@dataclass(slots=True, eq=False)
class EncoderRequest:
    """A request until its end. items: taken in. cached: of these, not encoded for it. waiting: not given out yet."""

    id: str
    open_sources: set[str]
    items: int = 0
    cached: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class Taker:
    """A request that waits for a job's outputs, and which of its items they are."""

    request: EncoderRequest
    index: int


@dataclass(slots=True, eq=False)
class Job:
    """One distinct piece of media to encode, for all who asked for it meanwhile. feed: the input that came first."""

    item: MediaItem
    features: Mapping[str, Tensor]
    feed: Feed
    takers: list[Taker] = field(default_factory=list)
    launched: bool = False
    alone: bool = False
    """It was in a batch that failed: it runs by itself, so that only what is at fault fails."""
