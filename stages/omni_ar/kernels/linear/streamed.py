"""Linear maps of a few rows: a program streams the weights of a few outputs, with all of its loads in flight at once.

Every program normalizes the rows itself, since they are few and in the L2 cache.

Shape legend: R rows, D inputs, N outputs; besides, d inputs and n outputs of one tile.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from omni_ar.kernels.activation.silu import silu
from omni_ar.kernels.linear.settings import StreamedSettings
from omni_ar.kernels.overlap import overlaps


def linear(x_RD: Tensor, weight_ND: Tensor, bias_N: Tensor | None, settings: StreamedSettings) -> Tensor:
    y_RN, _ = _launch(x_RD, None, None, 0.0, weight_ND, bias_N, False, settings)
    return y_RN


def gated_linear(x_RD: Tensor, weight_ND: Tensor, bias_N: Tensor | None, settings: StreamedSettings) -> Tensor:
    y_RN, _ = _launch(x_RD, None, None, 0.0, weight_ND, bias_N, True, settings)
    return y_RN


def norm_linear(
    x_RD: Tensor,
    delta_RD: Tensor | None,
    norm_D: Tensor,
    eps: float,
    weight_ND: Tensor,
    bias_N: Tensor | None,
    gated: bool,
    settings: StreamedSettings,
) -> tuple[Tensor, Tensor]:
    return _launch(x_RD, delta_RD, norm_D, eps, weight_ND, bias_N, gated, settings)


def _launch(
    x_RD: Tensor,
    delta_RD: Tensor | None,
    norm_D: Tensor | None,
    eps: float,
    weight_ND: Tensor,
    bias_N: Tensor | None,
    gated: bool,
    settings: StreamedSettings,
) -> tuple[Tensor, Tensor]:
    rows, width = x_RD.shape
    outputs = weight_ND.shape[0] // (2 if gated else 1)
    y_RN = x_RD.new_empty(rows, outputs)
    sum_RD = x_RD if delta_RD is None else torch.empty_like(x_RD, memory_format=torch.contiguous_format)
    delta = x_RD if delta_RD is None else delta_RD
    _few_rows[(triton.cdiv(outputs, settings.block_n),)](
        x_RD,
        delta,
        weight_ND if norm_D is None else norm_D,
        sum_RD,
        weight_ND,
        weight_ND if bias_N is None else bias_N,
        y_RN,
        rows,
        x_RD.stride(0),
        delta.stride(0),
        eps,
        OUTPUTS=outputs,
        WIDTH=width,
        # A power of two: few kernels exist, and all are compiled before the stage serves.
        ROWS=triton.next_power_of_2(rows),
        NORM=norm_D is not None,
        ADD=delta_RD is not None,
        GATED=gated,
        BIAS=bias_N is not None,
        OVERLAP=overlaps(x_RD),
        BLOCK_N=settings.block_n,
        BLOCK_D=settings.block_d,
        num_warps=settings.num_warps,
        launch_pdl=overlaps(x_RD),
    )
    return y_RN, sum_RD


@triton.jit(do_not_specialize=["rows"])
def _few_rows(
    x_ptr,
    delta_ptr,
    norm_ptr,
    sum_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    rows,
    x_stride,
    delta_stride,
    eps,
    OUTPUTS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    NORM: tl.constexpr,
    ADD: tl.constexpr,
    GATED: tl.constexpr,
    BIAS: tl.constexpr,
    OVERLAP: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    dtype = y_ptr.dtype.element_ty
    output_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    column_d = tl.arange(0, BLOCK_D)
    row_R1 = tl.arange(0, ROWS)[:, None]
    # In flight while the previous kernel ends and while the rows are normalized.
    weight_nd = _tile(weight_ptr, output_n, column_d, OUTPUTS, WIDTH)
    up_nd = weight_nd
    if GATED:
        up_nd = _tile(weight_ptr + OUTPUTS * WIDTH, output_n, column_d, OUTPUTS, WIDTH)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    scale_R1 = _scales(
        x_ptr, delta_ptr, sum_ptr, rows, x_stride, delta_stride, eps, dtype, WIDTH, ROWS, NORM, ADD, BLOCK_D
    )

    y_Rn = tl.zeros([ROWS, BLOCK_N], tl.float32)
    gated_Rn = tl.zeros([ROWS, BLOCK_N], tl.float32)
    for start in tl.static_range(0, WIDTH, BLOCK_D):
        index_d = start + column_d
        if start > 0:
            weight_nd = _tile(weight_ptr, output_n, index_d, OUTPUTS, WIDTH)
            if GATED:
                up_nd = _tile(weight_ptr + OUTPUTS * WIDTH, output_n, index_d, OUTPUTS, WIDTH)
        inside_d = index_d < WIDTH
        for row in tl.static_range(ROWS):
            inside_row_d = inside_d & (row + tl.zeros_like(index_d) < rows)
            x_d = _residual(x_ptr, delta_ptr, row, index_d, x_stride, delta_stride, inside_row_d, ADD)
            if NORM:
                norm_d = tl.load(norm_ptr + index_d, mask=inside_d, other=0.0).to(tl.float32)
                scale = tl.sum(tl.where(row_R1 == row, scale_R1, 0.0))
                x_d = (x_d * scale * norm_d).to(dtype).to(tl.float32)
            here_R1 = row_R1 == row
            y_Rn += tl.where(here_R1, tl.sum(weight_nd.to(tl.float32) * x_d[None, :], axis=1)[None, :], 0.0)
            if GATED:
                gated_Rn += tl.where(here_R1, tl.sum(up_nd.to(tl.float32) * x_d[None, :], axis=1)[None, :], 0.0)

    output_1n = output_n[None, :]
    inside_Rn = (row_R1 < rows) & (output_1n < OUTPUTS)
    y_Rn = _finished(y_Rn, gated_Rn, bias_ptr, output_1n, dtype, OUTPUTS, GATED, BIAS)
    tl.store(y_ptr + row_R1 * OUTPUTS + output_1n, y_Rn.to(dtype), mask=inside_Rn)


@triton.jit
def _scales(
    x_ptr,
    delta_ptr,
    sum_ptr,
    rows,
    x_stride,
    delta_stride,
    eps,
    dtype: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    NORM: tl.constexpr,
    ADD: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """The norm's scale of each row. The first program also stores the rows' sums."""
    row_R1 = tl.arange(0, ROWS)[:, None]
    square_R1 = tl.zeros([ROWS, 1], tl.float32)
    if NORM:
        for start in tl.static_range(0, WIDTH, BLOCK_D):
            column_1d = start + tl.arange(0, BLOCK_D)[None, :]
            inside_Rd = (row_R1 < rows) & (column_1d < WIDTH)
            x_Rd = _residual(x_ptr, delta_ptr, row_R1, column_1d, x_stride, delta_stride, inside_Rd, ADD)
            square_R1 += tl.sum(x_Rd * x_Rd, axis=1, keep_dims=True)
            if ADD:
                is_first = tl.program_id(0) == 0
                if is_first:
                    tl.store(sum_ptr + row_R1 * WIDTH + column_1d, x_Rd.to(dtype), mask=inside_Rd)
    return tl.rsqrt(square_R1 / WIDTH + eps) if NORM else square_R1


@triton.jit
def _finished(
    y_Rn,
    gated_Rn,
    bias_ptr,
    output_1n,
    dtype: tl.constexpr,
    OUTPUTS: tl.constexpr,
    GATED: tl.constexpr,
    BIAS: tl.constexpr,
):
    """Adds the bias to the sums and applies the activation. gated_Rn: the sums of the up outputs."""
    if BIAS:
        y_Rn += tl.load(bias_ptr + output_1n, mask=output_1n < OUTPUTS, other=0.0).to(tl.float32)
        if GATED:
            gated_Rn += tl.load(bias_ptr + OUTPUTS + output_1n, mask=output_1n < OUTPUTS, other=0.0).to(tl.float32)
    if GATED:
        gate_Rn, up_Rn = y_Rn.to(dtype).to(tl.float32), gated_Rn.to(dtype).to(tl.float32)
        y_Rn = silu(gate_Rn).to(dtype).to(tl.float32) * up_Rn
    return y_Rn


@triton.jit
def _tile(weight_ptr, output_n, column_d, OUTPUTS: tl.constexpr, WIDTH: tl.constexpr):
    inside_nd = (output_n < OUTPUTS)[:, None] & (column_d < WIDTH)[None, :]
    index_nd = output_n.to(tl.int64)[:, None] * WIDTH + column_d[None, :]
    # Weights are read once per step; rows and pages in the L2 cache are worth more.
    return tl.load(weight_ptr + index_nd, mask=inside_nd, other=0.0, eviction_policy="evict_first")


@triton.jit
def _residual(x_ptr, delta_ptr, row, column, x_stride, delta_stride, inside, ADD: tl.constexpr):
    """Rows of the residual stream in fp32, rounded like the stored sum."""
    x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0)
    total = x.to(tl.float32)
    if ADD:
        delta = tl.load(delta_ptr + row * delta_stride + column, mask=inside, other=0.0).to(tl.float32)
        total = (total + delta).to(x.dtype).to(tl.float32)
    return total
