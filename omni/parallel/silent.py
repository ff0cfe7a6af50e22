"""Ranks without others: for shapes, footprints and kernels of one rank of a stage, where no other rank is."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from omni.parallel.ranks import EqualRanks, Ranks


class SilentCommunicator:
    """A `Communicator` that is always silent: results have the right shape and zeros for what other ranks would give."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x_RN: Tensor) -> Tensor:
        *rows, width = x_RN.shape
        return x_RN.new_zeros(*rows, self.size * width)

    def broadcast(self, x: Tensor) -> None: ...

    @contextmanager
    def silent(self) -> Iterator[None]:
        yield

    def close(self) -> None: ...


class SilentChannel:
    """A `RankChannel` to nobody."""

    descriptor = None

    def send(self, message: bytes) -> None: ...

    def take(self) -> Sequence[bytes]:
        return ()

    def close(self) -> None: ...


def silent_ranks(rank: int, size: int) -> Ranks:
    """Ranks of which this one is alone."""
    return EqualRanks(rank=rank, size=size, communicator=SilentCommunicator(rank, size), channel=SilentChannel())
