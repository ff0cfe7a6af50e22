"""A communicator of torch's process groups."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroupGloo, Store, Work

from omni.errors import LostRankError, said
from omni.parallel.communicator import Communicator
from omni.parallel.silent import SilentCommunicator


def open_communicator(store: Store, rank: int, size: int, device: torch.device, timeout_seconds: float) -> Communicator:
    """Waits for the other ranks. Raises LostRankError if they do not come within the time limit, which also holds for every
    collective."""
    try:
        group = ProcessGroupGloo(store, rank, size, timedelta(seconds=timeout_seconds))
    except RuntimeError as error:
        raise LostRankError(f"rank {rank} of {size} finds no other: {said(error)}") from error
    return _GlooCommunicator(group, rank, size)


class _GlooCommunicator:
    def __init__(self, group: Any, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._group = group
        self._silent = SilentCommunicator(rank, size)
        self._quiet = False

    def all_reduce(self, x: Tensor) -> Tensor:
        if self._quiet:
            return self._silent.all_reduce(x)
        self._wait(self._group.allreduce([x]))
        return x

    def all_gather(self, x_RN: Tensor) -> Tensor:
        if self._quiet:
            return self._silent.all_gather(x_RN)
        parts = [torch.empty_like(x_RN) for _ in range(self.size)]
        self._wait(self._group.allgather([parts], [x_RN]))
        return torch.cat(parts, -1)

    def broadcast(self, x: Tensor) -> None:
        if not self._quiet:
            self._wait(self._group.broadcast(x, 0))

    @contextmanager
    def silent(self) -> Iterator[None]:
        self._quiet = True
        try:
            yield
        finally:
            self._quiet = False

    def close(self) -> None: ...

    def _wait(self, work: Work) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            raise LostRankError(said(error)) from error
