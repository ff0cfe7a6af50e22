"""The addition of a scaled branch to the residual stream, and the norm after it.

Shape legend: B rows, T positions, D width.
"""

import torch
from torch import Tensor

from omni.device.kernel_choice import runs_kernel
from omni_vocoder.kernels.residual_norm import reference
from omni_vocoder.kernels.residual_norm.reference import Branch

__all__ = ["Branch", "residual_norm"]


def residual_norm(
    hidden_BTD: Tensor, weight_D: Tensor, eps: float, branch: Branch | None = None
) -> tuple[Tensor, Tensor]:
    """Returns `hidden + scale * output` of the branch, and its RMSNorm (Zhang and Sennrich, 2019); without a branch, `hidden`
    itself and its RMSNorm. Norms are computed in float32 for every dtype, and rounded to it before they are multiplied by the
    weight. All tensors have one dtype, to which kernels round where separate operations would.
    """
    if not runs_kernel(hidden_BTD) or hidden_BTD.dtype == torch.float64:
        return reference.residual_norm(hidden_BTD, weight_D, eps, branch)
    from omni_vocoder.kernels.residual_norm import kernel

    return kernel.residual_norm(hidden_BTD, weight_D, eps, branch)
