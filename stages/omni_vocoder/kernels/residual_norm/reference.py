"""Addition and norm in plain torch. Shape legend: see the package."""

from typing import NamedTuple

import torch
from torch import Tensor


class Branch(NamedTuple):
    """A residual branch: its output, and the scale of this (Touvron et al., 2021)."""

    output_BTD: Tensor
    scale_D: Tensor


def residual_norm(hidden_BTD: Tensor, weight_D: Tensor, eps: float, branch: Branch | None) -> tuple[Tensor, Tensor]:
    if branch is not None:
        hidden_BTD = hidden_BTD + branch.scale_D * branch.output_BTD
    exact = hidden_BTD.float()
    normed = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + eps)
    return hidden_BTD, weight_D * normed.to(hidden_BTD.dtype)
