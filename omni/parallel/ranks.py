"""Ranks: the engines of a stage that is cut across engines, and what each of them holds."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Protocol

from omni.parallel.communicator import Communicator


class RankChannel(Protocol):
    """Messages from rank 0 to the other ranks, in order. No call waits for their work."""

    @property
    def descriptor(self) -> int | None:
        """A descriptor for `select` at a rank that receives: readable when a message is there, or when rank 0 has ended."""

    def send(self, message: bytes) -> None:
        """Sends a message from rank 0 to all others. Raises LostRankError if one has ended."""

    def take(self) -> bytes | None:
        """The next message; None if none has arrived. The caller begins its work before it takes another one. Messages of all
        stages that an engine follows are taken in the order in which rank 0 sent them: each stage's worker gets its own when those
        before it are taken. Raises LostRankError after the last one of a rank 0 that has ended."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RankLayout:
    """The division of a stage among its ranks. pipeline: number of layer ranges. tensor: number of shards of each layer, and so of
    ranks for each layer range. The first `tensor` ranks hold the last layer range, the next ones the range before it, and so on:
    rank 0 leads, and the results of a step are where the last layers are."""

    tensor: int = 1
    pipeline: int = 1

    @property
    def size(self) -> int:
        return self.tensor * self.pipeline

    def position(self, rank: int) -> int:
        """The position of a rank's layer range, 0 for that with the first layers."""
        return self.pipeline - 1 - rank // self.tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRank:
    """A rank of a stage with several layer ranges (pipeline parallelism). position: of its layer range, 0 for that with the first
    layers; its rank in both communicators. size: number of layer ranges. hidden: for hidden states, from each range to the next.
    tokens: for sampled tokens, from the last range to the others."""

    position: int
    size: int
    hidden: Communicator
    tokens: Communicator

    @property
    def first(self) -> bool:
        return self.position == 0

    @property
    def last(self) -> bool:
        return self.position == self.size - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks(ABC):
    """rank: of this engine. size: number of ranks. communicator: of all ranks, for inputs that rank 0 alone has. tensor: of the
    ranks with the same layer range; None if layers are whole. pipeline: None if this rank has all layers. step_seconds: time
    after which an incomplete step counts as hung (`StepWatch`)."""

    rank: int
    size: int
    communicator: Communicator
    channel: RankChannel
    tensor: Communicator | None = None
    pipeline: PipelineRank | None = None
    step_seconds: float = math.inf

    @property
    def communicators(self) -> Sequence[Communicator]:
        """All communicators of this rank, without duplicates."""
        own = [self.communicator, self.tensor]
        if self.pipeline is not None:
            own += [self.pipeline.hidden, self.pipeline.tokens]
        return list({id(each): each for each in own if each is not None}.values())

    @contextmanager
    def silent(self) -> Iterator[None]:
        """While entered, all communicators are silent."""
        with ExitStack() as stack:
            for communicator in self.communicators:
                stack.enter_context(communicator.silent())
            yield

    def close(self) -> None:
        self.channel.close()
        for communicator in self.communicators:
            communicator.close()

    @abstractmethod
    def all_reduce_min(self, name: str, number: int) -> int:
        """The smallest `number` of all ranks. All call it with the same name, at start. Waits for them."""

    @abstractmethod
    def all_gather_text(self, name: str, text: str) -> list[str]:
        """The `text` of each rank, in their order. As for `all_reduce_min`."""


class EqualRanks(Ranks):
    """Ranks with equal numbers and texts, or a single rank: no wait for others."""

    __slots__ = ()

    def all_reduce_min(self, name: str, number: int) -> int:
        return number

    def all_gather_text(self, name: str, text: str) -> list[str]:
        return [text] * self.size
