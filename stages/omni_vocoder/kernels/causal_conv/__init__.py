"""Convolution of a signal with its past, with the addition and the `SnakeBeta` after it.

Shape legend: B rows, T positions, L positions with those before them, C channels in, N channels out, K taps.
"""

import torch
from torch import Tensor

from omni.device.kernel_choice import runs_kernel
from omni_vocoder.kernels.causal_conv import reference
from omni_vocoder.kernels.causal_conv.reference import Snake

__all__ = ["Snake", "causal_conv"]


def causal_conv(
    x_BLC: Tensor,
    weight_KCN: Tensor,
    bias_N: Tensor,
    dilation: int,
    *,
    residual_BTN: Tensor | None = None,
    snake: Snake | None = None,
    sum_BTN: Tensor | None = None,
    activated_BTN: Tensor | None = None,
) -> None:
    """Writes `conv(x) + bias + residual` to `sum_BTN`, and its `snake` to `activated_BTN`, each if it is given.

    Output t is a sum over the positions t, t + dilation, ... of `x_BLC`: T is L - (K - 1) dilation. All tensors have one
    float dtype; kernels have sums in float32, rounded where they are written. Rows of B may lie apart; the dimensions after
    B are contiguous. snake: output n has the parameters of channel n % channels, since the outputs of an upsampling
    convolution are `[rate, channels]`.
    """
    if not runs_kernel(x_BLC) or x_BLC.dtype == torch.float64:
        reference.causal_conv(x_BLC, weight_KCN, bias_N, dilation, residual_BTN, snake, sum_BTN, activated_BTN)
        return
    from omni_vocoder.kernels.causal_conv import kernel

    settings = kernel.choose_settings(x_BLC, weight_KCN)
    kernel.causal_conv(
        x_BLC, weight_KCN, bias_N, dilation, residual_BTN, snake, sum_BTN, activated_BTN, settings=settings
    )
