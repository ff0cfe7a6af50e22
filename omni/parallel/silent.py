"""Ranks without peers: for shapes, footprints and kernels of one rank of a stage, where no other rank exists."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from omni.device.kernel_choice import runs_kernel
from omni.parallel.communicator import ARRIVED, PendingReceive
from omni.parallel.rank_memory import RankMemory
from omni.parallel.ranks import EqualRanks, PipelineRank, RankLayout, Ranks


class SilentCommunicator:
    """A `Communicator` that is always silent: results have the right shape and zeros in place of other ranks' values."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    def all_reduce(self, x: Tensor) -> Tensor:
        peers = self.rank_memory(x)
        return x if peers is None else peers.all_reduce(x)

    def rank_memory(self, x: Tensor) -> RankMemory | None:
        """None, except where launches are recorded (`omni.kernels`): kernels that use such memory have to be recorded too."""
        peers = RankMemory(self.rank, x.new_empty(self.size, dtype=torch.int64))
        return peers if x.is_meta and runs_kernel(x) and peers.takes(x) else None

    def all_gather(self, x_RN: Tensor) -> Tensor:
        *rows, width = x_RN.shape
        return x_RN.new_zeros(*rows, self.size * width)

    def send(self, x: Tensor, to: int) -> None: ...

    def post(self, x: Tensor, to: int) -> None: ...

    def receive(self, x: Tensor, source: int) -> PendingReceive:
        return ARRIVED

    @contextmanager
    def silent(self) -> Iterator[None]:
        yield

    def close(self) -> None: ...


class SilentChannel:
    """A `RankChannel` without receivers."""

    descriptor = None

    def send(self, message: bytes) -> None: ...

    def take(self) -> bytes | None:
        return None

    def close(self) -> None: ...


def silent_ranks(rank: int, layout: RankLayout) -> Ranks:
    """A rank without its peers."""
    position, tensor, pipeline = layout.position(rank), None, None
    if layout.tensor > 1:
        tensor = SilentCommunicator(rank % layout.tensor, layout.tensor)
    if layout.pipeline > 1:
        communicator = SilentCommunicator(position, layout.pipeline)
        pipeline = PipelineRank(position=position, size=layout.pipeline, hidden=communicator, tokens=communicator)
    return EqualRanks(
        rank=rank,
        size=layout.size,
        communicator=SilentCommunicator(rank, layout.size),
        channel=SilentChannel(),
        tensor=tensor,
        pipeline=pipeline,
    )
