"""The gated activation in plain torch."""

from torch import Tensor
from torch.nn import functional as F


def silu_and_mul(x_TX: Tensor) -> Tensor:
    gate_TI, up_TI = x_TX.chunk(2, dim=-1)
    return F.silu(gate_TI) * up_TI
