"""An activation at twice the rate of its signal.

Shape legend: B rows, C channels, T samples, K taps of a convolution.
"""

import torch
from torch import Tensor, nn

from omni.device.kernel_choice import runs_kernel
from omni_diffusion.kernels.alias_free import reference
from omni_diffusion.kernels.alias_free.reference import REACH, resampling_filters
from omni_frames.snake import SnakeBeta

__all__ = ["REACH", "alias_free", "resampling_filters"]


def alias_free(signal_BCT: Tensor, act: nn.Module, up_21K: Tensor, down_12K: Tensor) -> Tensor:
    """Doubles the rate, applies `act` and halves the rate, `[B, C, T]`. At both ends the signal is continued by its first or last
    sample, at either rate.

    act: elementwise within a channel, on `[B, C, 2, T]`. up_21K, down_12K: `resampling_filters()` on the signal's device, in its
    dtype; the kernel has them as constants. The kernel is for `SnakeBeta`: other activations, and float64, run in torch.
    """
    if not isinstance(act, SnakeBeta) or signal_BCT.dtype == torch.float64 or not runs_kernel(signal_BCT):
        return reference.alias_free(signal_BCT, act, up_21K, down_12K)
    from omni_diffusion.kernels.alias_free import kernel

    return kernel.alias_free(signal_BCT.contiguous(), act.alpha, act.beta)
