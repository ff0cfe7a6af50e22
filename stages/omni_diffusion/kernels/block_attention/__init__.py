"""Attention of blocks of latent frames to themselves and to their neighbours.

Shape legend: U branches, B rows, K blocks of a row, F frames of a block, H heads, W width of a head, N = U * B * K, J = 3 * F.
"""

import torch
from torch import Tensor

from omni.device.kernel_choice import runs_kernel
from omni_diffusion.kernels.block_attention import reference

__all__ = ["attend_blocks"]


def attend_blocks(
    qkv_UBKF3HW: Tensor, bias_N1FJ: Tensor, before_UBF2HW: Tensor | None = None, *, back: bool, ahead: bool
) -> Tensor:
    """Every frame attends to the frames of its block, with `back` also to those of the block before, with `ahead` to those of the
    block after. Returns `[N, F, H, W]`.

    qkv_UBKF3HW: queries, keys and values, contiguous. bias_N1FJ: added to the scores of the block before, the block and the block
    after; -inf for frames that are not seen, which have the weight 0 and must be finite; equal for all queries of a block; dense
    along J. before_UBF2HW: keys and values of the block before a row's first, contiguous within a row. Without it, the bias must
    hide that block, as it must always hide the one after a row's last. All tensors have one dtype. Products of float32 are
    rounded to TF32 where torch's are; float64 runs in torch.
    """
    if qkv_UBKF3HW.dtype == torch.float64 or not runs_kernel(qkv_UBKF3HW):
        return reference.attend_blocks(qkv_UBKF3HW, bias_N1FJ, before_UBF2HW, back=back, ahead=ahead)
    from omni_diffusion.kernels.block_attention import kernel

    precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
    return kernel.attend_blocks(qkv_UBKF3HW, bias_N1FJ, before_UBF2HW, back=back, ahead=ahead, precision=precision)
