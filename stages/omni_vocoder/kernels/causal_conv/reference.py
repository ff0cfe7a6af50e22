"""Convolution, addition and `SnakeBeta` in plain torch. Shape legend: see the package."""

from typing import NamedTuple

import torch
from torch import Tensor


class Snake(NamedTuple):
    """Parameters of a `SnakeBeta`: logarithms, one per channel."""

    alpha: Tensor
    beta: Tensor


def causal_conv(
    x_BLC: Tensor,
    weight_KCN: Tensor,
    bias_N: Tensor,
    dilation: int,
    residual_BTN: Tensor | None,
    snake: Snake | None,
    sum_BTN: Tensor | None,
    activated_BTN: Tensor | None,
) -> None:
    """As the package's function, in float32 at least."""
    dtype = torch.promote_types(x_BLC.dtype, torch.float32)
    x_BCL, weight_NCK = x_BLC.to(dtype).transpose(1, 2), weight_KCN.to(dtype).permute(2, 1, 0)
    out_BTN = torch.nn.functional.conv1d(x_BCL, weight_NCK, bias_N.to(dtype), dilation=dilation).transpose(1, 2)
    if residual_BTN is not None:
        out_BTN = out_BTN + residual_BTN
    if sum_BTN is not None:
        sum_BTN.copy_(out_BTN)
    if activated_BTN is not None:
        assert snake is not None
        alpha_C, beta_C = (parameter.to(dtype) for parameter in snake)
        out_BTJC = out_BTN.unflatten(2, (-1, alpha_C.shape[0]))
        activated = out_BTJC + (out_BTJC * alpha_C.exp()).sin().square() / (beta_C.exp() + 1e-9)
        activated_BTN.copy_(activated.flatten(2))
