"""Collectives and transfers between the ranks of a stage.

Shape legend: R rows, N outputs of one rank.
"""

from contextlib import AbstractContextManager
from typing import Protocol

from torch import Tensor

from omni.parallel.rank_memory import RankMemory


class PendingReceive(Protocol):
    """A tensor from another rank."""

    def done(self) -> bool:
        """Whether `wait` is known to return at once: on the CPU only after a `wait` or `arrived` that found the tensor."""

    def arrived(self) -> bool:
        """Whether it has arrived. Only for a rank that gives up otherwise: the call may wait, and break off a transfer that has not
        arrived."""

    def wait(self) -> None:
        """Returns once phases that are enqueued on the current stream read it. On the CPU it waits for the other rank. Raises
        `LostRankError` as the collectives do."""


class _Arrived:
    def done(self) -> bool:
        return True

    def arrived(self) -> bool:
        return True

    def wait(self) -> None: ...


ARRIVED: PendingReceive = _Arrived()
"""A receive that is complete from the start."""


class Communicator(Protocol):
    """Collectives, called inside device phases. Every rank calls the same ones, in the same order, with equal shapes and dtypes;
    on CUDA they are enqueued on the current stream and can be captured. A rank that waits longer than the time limit for the
    others raises `LostRankError`, or ends its process where the device alone waits."""

    @property
    def rank(self) -> int:
        """This engine's rank among those that communicate. `Ranks.rank` is its rank in the whole stage."""

    @property
    def size(self) -> int: ...

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over the ranks, of the same bits on each. May overwrite `x`, which is contiguous."""

    def rank_memory(self, x: Tensor) -> RankMemory | None:
        """Memory through which a kernel sums tensors of the size and dtype of `x` in place of an `all_reduce`; None where there is
        none. Either all ranks get it or none."""

    def all_gather(self, x_RN: Tensor) -> Tensor:
        """The columns of all ranks, `[R, size * N]`, in the order of the ranks."""

    def send(self, x: Tensor, to: int) -> None:
        """Sends `x`, which is contiguous, to one rank. The host does not wait for that rank; on the CPU a copy is sent. Pairs of
        ranks send and receive in the same order, with equal shapes and dtypes."""

    def post(self, x: Tensor, to: int) -> None:
        """As `send`, but later work on the current stream does not wait for the transfer: `x` must not be overwritten before the
        other rank has received it."""

    def receive(self, x: Tensor, source: int) -> PendingReceive:
        """Overwrites `x`, which is contiguous, with the next tensor from a rank. `x` must not be read or written before the tensor
        has arrived."""

    def silent(self) -> AbstractContextManager[None]:
        """While entered, collectives give results of the right shape, without contents, nothing is sent or received, and no other
        rank is involved: a rank may measure its memory alone."""

    def close(self) -> None: ...
