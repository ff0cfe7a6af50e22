"""The host's record of a request, and the jobs that requests share."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from omni.device import COMPLETED, Event
from omni.stage import Feed
from omni_encoder.cache import ContentKey, Outputs
from omni_encoder.inputs import MediaItem


@dataclass(slots=True, eq=False)
class EncoderRequest:
    """A request until its end.

    rank: the lowest is encoded first. paused: whether a consumer is behind.
    items: number of items received. cached: number of items that were not encoded for this request. waiting: number of
    items whose outputs are not emitted yet.
    kept: cached outputs of a paused request, with the items' indexes.
    """

    id: str
    open_sources: set[str]
    rank: tuple[int, int] = (0, 0)
    cache_salt: str = ""
    items: int = 0
    cached: int = 0
    waiting: int = 0
    paused: bool = False
    kept: list[tuple[int, Outputs]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Taker:
    """A request that waits for a job's outputs. index: index of the item in the request."""

    request: EncoderRequest
    index: int


@dataclass(slots=True, eq=False)
class Job:
    """One piece of media to encode, for all requests with the same content.

    feed: the input that arrived first. after: the end of work on it that failed batches launched.
    """

    key: ContentKey
    item: MediaItem
    features: Mapping[str, Tensor]
    feed: Feed
    takers: list[Taker] = field(default_factory=list)
    launched: bool = False
    alone: bool = False
    """Whether it must run alone, since its last batch failed (`omni.stage.together`)."""
    after: Event = COMPLETED

    @property
    def rank(self) -> tuple[int, int]:
        """The lowest rank of its requests."""
        return min(taker.request.rank for taker in self.takers)

    @property
    def paused(self) -> bool:
        """Whether all of its requests are paused."""
        return all(taker.request.paused for taker in self.takers)
