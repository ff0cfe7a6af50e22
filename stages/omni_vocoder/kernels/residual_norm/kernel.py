"""A program adds and normalizes one position, whose numbers fit into registers. Shape legend: see the package."""

import triton
import triton.language as tl
from torch import Tensor

from omni_vocoder.kernels.residual_norm.reference import Branch


def residual_norm(hidden_BTD: Tensor, weight_D: Tensor, eps: float, branch: Branch | None) -> tuple[Tensor, Tensor]:
    """Launches the kernel. Arguments as for the package's function."""
    width = hidden_BTD.shape[-1]
    hidden_BTD = hidden_BTD.contiguous()
    normed_BTD = hidden_BTD.new_empty(hidden_BTD.shape)
    sum_BTD = hidden_BTD if branch is None else hidden_BTD.new_empty(hidden_BTD.shape)
    _residual_norm[(hidden_BTD.numel() // width,)](
        hidden_BTD,
        hidden_BTD if branch is None else branch.output_BTD.contiguous(),
        weight_D if branch is None else branch.scale_D,
        weight_D,
        sum_BTD,
        normed_BTD,
        eps,
        ADD=branch is not None,
        WIDTH=width,
        BLOCK=triton.next_power_of_2(width),
        num_warps=4,
        # A fused multiply-add would round once where separate operations round twice.
        enable_fp_fusion=False,
    )
    return sum_BTD, normed_BTD


@triton.jit
def _residual_norm(
    hidden_ptr,
    output_ptr,
    scale_ptr,
    weight_ptr,
    sum_ptr,
    normed_ptr,
    eps,
    ADD: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    column = tl.arange(0, BLOCK)
    live = column < WIDTH
    at = tl.program_id(0).to(tl.int64) * WIDTH + column
    dtype = normed_ptr.dtype.element_ty
    hidden = tl.load(hidden_ptr + at, mask=live, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=live, other=0.0).to(tl.float32)
    if ADD:
        output = tl.load(output_ptr + at, mask=live, other=0.0).to(tl.float32)
        scale = tl.load(scale_ptr + column, mask=live, other=0.0).to(tl.float32)
        rounded = (hidden + (scale * output).to(dtype).to(tl.float32)).to(dtype)
        tl.store(sum_ptr + at, rounded, mask=live)
        hidden = rounded.to(tl.float32)
    factor = tl.rsqrt(tl.sum(hidden * hidden, 0) / WIDTH + eps)
    normed = (hidden * factor).to(dtype).to(tl.float32) * weight
    tl.store(normed_ptr + at, normed.to(dtype), mask=live)
