"""A residual addition and a layer norm without parameters, with gate, scale and shift that depend on the row of the batch.

Shape legend: U branches, B rows, T latent frames of a row, D width.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from omni.device.kernel_choice import runs_kernel
from omni_diffusion.kernels.modulated_norm import reference

__all__ = ["GatedBranch", "modulated_norm"]

EPS = 1e-6


class GatedBranch(NamedTuple):
    """The addition to the input: `gate * branch`. branch_UBTD: contiguous. gate_BD: dense along D."""

    branch_UBTD: Tensor
    gate_BD: Tensor


def modulated_norm(
    x_UBTD: Tensor, residual: GatedBranch | None, scale_BD: Tensor, shift_BD: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns `layer_norm(sum) * scale + shift` and the sum, `x + gate * branch`, which is `x` without a residual.

    scale_BD, shift_BD: dense along D. All tensors have one dtype. The kernel computes in float32, and rounds the sum, which the
    norm reads rounded, and the result; float64 runs in torch.
    """
    if x_UBTD.dtype == torch.float64 or not runs_kernel(x_UBTD):
        return reference.modulated_norm(x_UBTD, residual, scale_BD, shift_BD, EPS)
    from omni_diffusion.kernels.modulated_norm import kernel

    return kernel.modulated_norm(x_UBTD.contiguous(), residual, scale_BD, shift_BD, EPS)
