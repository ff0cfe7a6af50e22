"""A residual addition that is still to be summed over ranks.

Shape legend: T rows, D width.
"""

from torch import Tensor

from omni.parallel import Communicator
from omni.parallel.rank_memory import RankMemory


class PartialSum:
    """This rank's part of a sum over ranks. The kernel that adds the sum to the residual stream also computes it, if the part is
    small and the devices reach each other's memory. Such a sum needs no launch of its own and no pass over its result."""

    def __init__(self, part: Tensor, communicator: Communicator) -> None:
        """part: `[T, D]`; or fp32 parts of it, `[P, T, D]`, whose sum is rounded before ranks add theirs. The part has no other
        reader."""
        self.part = part
        self._communicator = communicator
        self._total_TD: Tensor | None = None

    def rank_memory(self, x_TD: Tensor) -> RankMemory | None:
        """The memory for a kernel that sums the part while it adds it to the residual stream `x_TD`; None if only `total` sums
        it."""
        return self._communicator.rank_memory(x_TD) if self._total_TD is None else None

    def total(self, x_TD: Tensor) -> Tensor:
        """The sum, `[T, D]` in the dtype of the residual stream. Calls a collective, the first time."""
        if self._total_TD is None:
            part_TD = self.part.sum(0).to(x_TD.dtype) if self.part.ndim == 3 else self.part
            self._total_TD = self._communicator.all_reduce(part_TD)
        return self._total_TD


Delta = Tensor | PartialSum
"""A pending addition to a residual stream: `[T, D]` in its dtype; or fp32 parts of it, `[P, T, D]`; or a part of a rank."""
