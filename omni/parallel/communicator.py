"""Collectives between the ranks of a stage.

Shape legend: R rows, N outputs of one rank.
"""

from contextlib import AbstractContextManager
from typing import Protocol

from torch import Tensor


class Communicator(Protocol):
    """Collectives, called inside device phases. Every rank calls the same ones, in the same order, with equal shapes and dtypes;
    on CUDA they are enqueued on the current stream and can be captured. A rank that waits longer than the time limit for the
    others raises `LostRankError`, or ends its process where the device alone waits."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over the ranks, of the same bits on each. May overwrite `x`, which is contiguous."""

    def all_gather(self, x_RN: Tensor) -> Tensor:
        """The columns of all ranks, `[R, size * N]`, in the order of the ranks."""

    def broadcast(self, x: Tensor) -> None:
        """Overwrites `x`, which is contiguous, by that of rank 0."""

    def silent(self) -> AbstractContextManager[None]:
        """While entered, collectives give results of the right shape, without contents, and involve no other rank: a rank may
        measure its memory alone."""

    def close(self) -> None: ...
