"""The norms of heads before their rotation. Shape legend: see the package."""

from typing import NamedTuple

from torch import Tensor


class HeadNorms(NamedTuple):
    """RMSNorm over each query and key head: weights `[W]`."""

    query_W: Tensor
    key_W: Tensor
    eps: float
