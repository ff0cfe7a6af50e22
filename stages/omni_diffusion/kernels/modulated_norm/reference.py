"""The norm as separate torch operations. Shape legend: see the package."""

import torch
from torch import Tensor
from torch.nn.functional import layer_norm


def modulated_norm(
    x_UBTD: Tensor, residual: tuple[Tensor, Tensor] | None, scale_BD: Tensor, shift_BD: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    if residual is not None:
        branch_UBTD, gate_BD = residual
        x_UBTD = torch.addcmul(x_UBTD, gate_BD[:, None], branch_UBTD)
    normed_UBTD = layer_norm(x_UBTD, x_UBTD.shape[-1:], eps=eps)
    return torch.addcmul(shift_BD[:, None], normed_UBTD, scale_BD[:, None]), x_UBTD
