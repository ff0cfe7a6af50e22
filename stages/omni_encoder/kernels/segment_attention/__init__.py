"""Attention within the segments of a packed batch: every position attends to all positions of its own segment.

Shape legend: S positions of the batch, H heads, W width of a head.
"""

from torch import Tensor

from omni.device.kernel_choice import runs_kernel
from omni_encoder.kernels.segment_attention import reference

__all__ = ["attend_segments"]


def attend_segments(
    q_SHW: Tensor,
    k_SHW: Tensor,
    v_SHW: Tensor,
    bounds_S2: Tensor,
    lengths: tuple[int, ...] | None,
    scale: float,
) -> Tensor:
    """Attention of every position to those of its segment. Returns `[S, H, W]`, contiguous.

    q_SHW, k_SHW, v_SHW: float32, float16 or bfloat16, all of one dtype; dense along W. Kernels are compiled for the
    strides of H and S, which should not depend on S. bounds_S2: int32, start of each position's segment and of the next
    one; segments are consecutive. Zeros mark padding, which attends to no key and yields zeros. lengths: lengths of
    the segments, if the host has them and there is no padding; else None. scale: factor of scores, before the
    softmax.
    """
    if not runs_kernel(q_SHW):
        return reference.attend_segments(q_SHW, k_SHW, v_SHW, bounds_S2, lengths, scale)
    from omni_encoder.kernels.segment_attention import kernel

    settings = kernel.choose_settings(q_SHW.dtype)
    return kernel.attend_segments(q_SHW, k_SHW, v_SHW, bounds_S2, scale, settings)
