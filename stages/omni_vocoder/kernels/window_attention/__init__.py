"""Attention of a chunk of a stream to itself and to the positions before it, within a window.

Shape legend: B rows, T new positions, P past positions (window - 1), H heads, K heads of keys and values, E head width,
X = H * E or K * E.
"""

import torch
from torch import Tensor

from omni.device.kernel_choice import runs_kernel
from omni_vocoder.kernels.window_attention import reference
from omni_vocoder.kernels.window_attention.reference import AttentionInputs, attend_whole

__all__ = ["AttentionInputs", "attend_whole", "attend_window"]


def attend_window(
    query_BTX: Tensor,
    key_BTX: Tensor,
    value_BTX: Tensor,
    inputs: AttentionInputs,
    past_key_BKPE: Tensor,
    past_value_BKPE: Tensor,
) -> Tensor:
    """Rotates queries and keys; every position attends to itself and to the P before it. Returns `[B, T, H * E]`, contiguous.

    query_BTX, key_BTX, value_BTX: not rotated, dense along X. Kernels are compiled for the stride of T, which should not
    depend on T. past_key_BKPE, past_value_BKPE: rotated keys, and values, of the positions before; parts of one state,
    contiguous after B. They become those of the last P positions. Those before the start of a stream have no effect on the
    result; the reference needs them finite. All float tensors have one dtype; rotated queries and keys are rounded to it.
    """
    if not runs_kernel(query_BTX) or query_BTX.dtype == torch.float64:
        return reference.attend_window(query_BTX, key_BTX, value_BTX, inputs, past_key_BKPE, past_value_BKPE)
    from omni_vocoder.kernels.window_attention import kernel

    settings = kernel.choose_settings(query_BTX)
    return kernel.attend_window(
        query_BTX, key_BTX, value_BTX, inputs, past_key_BKPE, past_value_BKPE, settings=settings
    )
