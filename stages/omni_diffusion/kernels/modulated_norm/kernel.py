"""One program per latent frame, which holds it in registers. Shape legend: see the package."""

import torch
import triton
import triton.language as tl
from torch import Tensor


def modulated_norm(
    x_UBTD: Tensor, residual: tuple[Tensor, Tensor] | None, scale_BD: Tensor, shift_BD: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Launches the kernel. x_UBTD: contiguous."""
    _, rows, frames, width = x_UBTD.shape
    out_UBTD = torch.empty_like(x_UBTD)
    sum_UBTD = x_UBTD if residual is None else torch.empty_like(x_UBTD)
    branch_UBTD, gate_BD = (x_UBTD, scale_BD) if residual is None else residual
    block = triton.next_power_of_2(width)
    _modulated_norm[(x_UBTD.numel() // width,)](
        x_UBTD,
        branch_UBTD,
        gate_BD,
        scale_BD,
        shift_BD,
        sum_UBTD,
        out_UBTD,
        rows,
        frames,
        gate_BD.stride(0),
        scale_BD.stride(0),
        shift_BD.stride(0),
        eps,
        WIDTH=width,
        ADD=residual is not None,
        BLOCK=block,
        num_warps=min(max(block // 256, 1), 8),
    )
    return out_UBTD, sum_UBTD


@triton.jit(do_not_specialize=["rows", "frames"])
def _modulated_norm(
    x_ptr,
    branch_ptr,
    gate_ptr,
    scale_ptr,
    shift_ptr,
    sum_ptr,
    out_ptr,
    rows,
    frames,
    gate_stride,
    scale_stride,
    shift_stride,
    eps,
    WIDTH: tl.constexpr,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    frame = tl.program_id(0)
    row = frame // frames % rows
    column_D = tl.arange(0, BLOCK)
    inside_D = column_D < WIDTH
    at_D = frame.to(tl.int64) * WIDTH + column_D
    x_D = tl.load(x_ptr + at_D, mask=inside_D, other=0.0).to(tl.float32)
    scale_D = tl.load(scale_ptr + row * scale_stride + column_D, mask=inside_D, other=0.0).to(tl.float32)
    shift_D = tl.load(shift_ptr + row * shift_stride + column_D, mask=inside_D, other=0.0).to(tl.float32)
    if ADD:
        branch_D = tl.load(branch_ptr + at_D, mask=inside_D, other=0.0).to(tl.float32)
        gate_D = tl.load(gate_ptr + row * gate_stride + column_D, mask=inside_D, other=0.0).to(tl.float32)
        x_D += gate_D * branch_D
        rounded_D = x_D.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + at_D, rounded_D, mask=inside_D)
        x_D = rounded_D.to(tl.float32)
    mean = tl.sum(x_D, 0) / WIDTH
    centered_D = tl.where(inside_D, x_D - mean, 0.0)
    variance = tl.sum(centered_D * centered_D, 0) / WIDTH
    out_D = centered_D * tl.rsqrt(variance + eps) * scale_D + shift_D
    tl.store(out_ptr + at_D, out_D.to(out_ptr.dtype.element_ty), mask=inside_D)
