"""The gated activation in one pass.

Shape legend: T rows, I intermediate width, X = 2I.
"""

import triton
import triton.language as tl
from torch import Tensor

from omni_ar.kernels.activation.silu import silu
from omni_ar.kernels.overlap import overlaps
from omni_ar.kernels.prefetch import prefetch_bytes, prefetch_l2

_BLOCK = 1024


def silu_and_mul(x_TX: Tensor, prefetch: Tensor | None = None) -> Tensor:
    rows, both = x_TX.shape
    width = both // 2
    out_TI = x_TX.new_empty(rows, width)
    if not rows:
        return out_TI
    block = min(_BLOCK, triton.next_power_of_2(width))
    warps = min(max(block // 256, 1), 4)
    grid = (rows, triton.cdiv(width, block))
    overlap = overlaps(x_TX)
    _silu_and_mul[grid](
        x_TX,
        out_TI,
        out_TI if prefetch is None else prefetch,
        x_TX.stride(0),
        WIDTH=width,
        PREFETCH_BYTES=prefetch_bytes(prefetch, rows, overlap),
        OVERLAP=overlap,
        BLOCK=block,
        num_warps=warps,
        launch_pdl=overlap,
    )
    return out_TI


@triton.jit
def _silu_and_mul(
    x_ptr,
    out_ptr,
    prefetch_ptr,
    x_stride,
    WIDTH: tl.constexpr,
    PREFETCH_BYTES: tl.constexpr,
    OVERLAP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        program = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
        prefetch_l2(prefetch_ptr, program, tl.num_programs(0) * tl.num_programs(1), PREFETCH_BYTES)
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    column_I = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside_I = column_I < WIDTH
    gate_I = tl.load(x_ptr + row * x_stride + column_I, mask=inside_I, other=0.0).to(tl.float32)
    up_I = tl.load(x_ptr + row * x_stride + WIDTH + column_I, mask=inside_I, other=0.0).to(tl.float32)
    dtype = out_ptr.dtype.element_ty
    active_I = silu(gate_I).to(dtype).to(tl.float32)
    tl.store(out_ptr + row * WIDTH + column_I, (active_I * up_I).to(dtype), mask=inside_I)
