"""Root mean square normalization in plain torch."""

from torch import Tensor
from torch.nn import functional as F


def rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight_D.shape, weight_D, eps)


def add_rms_norm(x_TD: Tensor, delta_TD: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    sum_TD = residual_sum(x_TD, delta_TD)
    return rms_norm(sum_TD, weight_D, eps), sum_TD


def residual_sum(x_TD: Tensor, delta_TD: Tensor) -> Tensor:
    if delta_TD.ndim == 3:
        delta_TD = delta_TD.sum(0).to(x_TD.dtype)
    return x_TD + delta_TD
