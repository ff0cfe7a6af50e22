"""Linear maps of a few rows: a program streams the weights of a few outputs, with all of its loads in flight at once.

A norm before the product is applied to the outputs: every program accumulates the mean square of the rows, which are few and in
the L2 cache, beside the products.

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
    # In flight while the previous kernel ends.
    weight_nd = _tile(weight_ptr, output_n, column_d, OUTPUTS, WIDTH)
    up_nd = weight_nd
    if GATED:
        up_nd = _tile(weight_ptr + OUTPUTS * WIDTH, output_n, column_d, OUTPUTS, WIDTH)
    norm_d = _norm(norm_ptr, column_d, WIDTH, NORM)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()

    sums = ()
    for _row in tl.static_range(ROWS):
        zero_n = tl.zeros([BLOCK_N], tl.float32)
        sums += ((zero_n, zero_n, tl.full([], 0.0, tl.float32)),)  # type: ignore[assignment]
    for start in tl.static_range(0, WIDTH, BLOCK_D):
        index_d = start + column_d
        if start > 0:
            weight_nd = _tile(weight_ptr, output_n, index_d, OUTPUTS, WIDTH)
            if GATED:
                up_nd = _tile(weight_ptr + OUTPUTS * WIDTH, output_n, index_d, OUTPUTS, WIDTH)
            norm_d = _norm(norm_ptr, index_d, WIDTH, NORM)
        inside_d = index_d < WIDTH
        added = ()
        for row in tl.static_range(ROWS):
            y_n, up_n, square = sums[row]  # type: ignore[var-annotated]
            inside_row_d = inside_d & (row + tl.zeros_like(index_d) < rows)
            x_d = _residual(x_ptr, delta_ptr, row, index_d, x_stride, delta_stride, inside_row_d, ADD)
            if NORM:
                if ADD:
                    is_first = tl.program_id(0) == 0
                    if is_first:
                        tl.store(sum_ptr + row * WIDTH + index_d, x_d.to(dtype), mask=inside_row_d)
                square += tl.sum(x_d * x_d)
                x_d = x_d * norm_d
            y_n += tl.sum(weight_nd.to(tl.float32) * x_d[None, :], axis=1)
            if GATED:
                up_n += tl.sum(up_nd.to(tl.float32) * x_d[None, :], axis=1)
            added += ((y_n, up_n, square),)  # type: ignore[assignment]
        sums = added

    for row in tl.static_range(ROWS):
        y_n, up_n, square = sums[row]
        if NORM:
            scale = tl.rsqrt(square / WIDTH + eps)
            y_n *= scale
            up_n *= scale
        y_n = _finished(y_n, up_n, bias_ptr, output_n, dtype, OUTPUTS, GATED, BIAS)
        inside_n = (output_n < OUTPUTS) & (row + tl.zeros_like(output_n) < rows)
        tl.store(y_ptr + row * OUTPUTS + output_n, y_n.to(dtype), mask=inside_n)


@triton.jit
def _norm(norm_ptr, column_d, WIDTH: tl.constexpr, NORM: tl.constexpr):
    if NORM:
        norm_d = tl.load(norm_ptr + column_d, mask=column_d < WIDTH, other=0.0).to(tl.float32)
    else:
        norm_d = tl.zeros_like(column_d).to(tl.float32)
    return norm_d


@triton.jit
def _finished(
    y_n,
    up_n,
    bias_ptr,
    output_n,
    dtype: tl.constexpr,
    OUTPUTS: tl.constexpr,
    GATED: tl.constexpr,
    BIAS: tl.constexpr,
):
    """A row's sums with bias and activation. up_n: the sums of the up outputs."""
    if BIAS:
        y_n += tl.load(bias_ptr + output_n, mask=output_n < OUTPUTS, other=0.0).to(tl.float32)
        if GATED:
            up_n += tl.load(bias_ptr + OUTPUTS + output_n, mask=output_n < OUTPUTS, other=0.0).to(tl.float32)
    if GATED:
        gate_n, up_n = y_n.to(dtype).to(tl.float32), up_n.to(dtype).to(tl.float32)
        y_n = silu(gate_n).to(dtype).to(tl.float32) * up_n
    return y_n


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
