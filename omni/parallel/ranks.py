"""The part of an engine in a stage that is cut across engines."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from omni.parallel.communicator import Communicator


class RankChannel(Protocol):
    """Messages from rank 0 to the other ranks, in order. No call waits for their work."""

    @property
    def descriptor(self) -> int | None:
        """For `select` at a rank that receives: readable when a message is there, or when rank 0 has ended."""

    def send(self, message: bytes) -> None:
        """From rank 0, to all others. Raises LostRankError if one has ended."""

    def take(self) -> Sequence[bytes]:
        """The messages that have arrived since the last call. Raises LostRankError after the last one of a rank 0 that has
        ended."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks(ABC):
    """rank: of this engine. size: number of ranks."""

    rank: int
    size: int
    communicator: Communicator
    channel: RankChannel

    @abstractmethod
    def least(self, name: str, number: int) -> int:
        """The smallest `number` of all ranks. All call it with the same name, at start. Waits for them."""


class EqualRanks(Ranks):
    """Ranks whose numbers are equal, or one that is alone: it waits for no other."""

    __slots__ = ()

    def least(self, name: str, number: int) -> int:
        return number
