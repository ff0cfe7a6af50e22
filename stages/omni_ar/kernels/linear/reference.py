"""Linear maps as separate torch operations: cuBLAS on a GPU."""

from torch import Tensor
from torch.nn import functional as F

from omni_ar.kernels.activation import silu_and_mul


def linear(x_TD: Tensor, weight_ND: Tensor, bias_N: Tensor | None) -> Tensor:
    return F.linear(x_TD, weight_ND, bias_N)


def gated_linear(x_TD: Tensor, weight_ND: Tensor, bias_N: Tensor | None, prefetch: Tensor | None = None) -> Tensor:
    return silu_and_mul(F.linear(x_TD, weight_ND, bias_N), prefetch=prefetch)
