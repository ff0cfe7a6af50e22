"""The kernels of `tiled`. Shape legend: see there."""

from typing import NamedTuple

import triton
import triton.language as tl

from omni_ar.kernels.activation.silu import silu
from omni_ar.kernels.prefetch import prefetch_l2


class Inputs(NamedTuple):
    """Pointers to the rows, the residual `delta` that is added to them, the norm weight, and `total`, which receives
    the sum."""

    x: tl.tensor
    delta: tl.tensor
    norm: tl.tensor
    total: tl.tensor
    rows: tl.tensor
    x_stride: tl.tensor
    delta_stride: tl.tensor


@triton.jit(do_not_specialize=["rows"])
def some_rows(
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
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    NORM: tl.constexpr,
    ADD: tl.constexpr,
    GATED: tl.constexpr,
    BIAS: tl.constexpr,
    ROWS_LEFT: tl.constexpr,
    SLICES: tl.constexpr,
    PREFETCH_BYTES: tl.constexpr,
    HELD: tl.constexpr,
    OVERLAP: tl.constexpr,
    EARLY: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_D: tl.constexpr,
):
    first = tl.program_id(0) * TILE_N
    HALVES: tl.constexpr = 2 if GATED else 1
    PROGRAMS: tl.constexpr = (OUTPUTS + TILE_N - 1) // TILE_N
    SHARE: tl.constexpr = WIDTH // SPLITS
    half_m = tl.arange(0, HALVES * TILE_N)
    # Gate and up alternate. Outputs past the last are computed twice and not stored.
    weight_m = tl.minimum(first + half_m // HALVES, OUTPUTS - 1).to(tl.int64) + half_m % HALVES * OUTPUTS
    share = tl.program_id(1) * SHARE
    weight_Smd = weight_ptr + _upright(weight_m, SLICES) * WIDTH + share + _across(TILE_D, SLICES)
    if OVERLAP:
        if EARLY:
            tl.extra.cuda.gdc_launch_dependents()
        _fetch(weight_ptr, first, OUTPUTS, WIDTH, SPLITS, GATED, PREFETCH_BYTES, TILE_N)
    held = ()
    if HELD:
        held = _all_weights(weight_Smd, SHARE, TILE_D, SLICES)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    row_R = tl.arange(0, ROWS)
    LEFT: tl.constexpr = ROWS if ROWS_LEFT else HALVES * TILE_N
    RIGHT: tl.constexpr = HALVES * TILE_N if ROWS_LEFT else ROWS
    square_SR = tl.zeros([SLICES, ROWS] if SLICES > 1 else [ROWS], tl.float32)
    y = tl.zeros([SLICES, LEFT, RIGHT] if SLICES > 1 else [LEFT, RIGHT], tl.float32)
    inputs = Inputs(x_ptr, delta_ptr, norm_ptr, sum_ptr, rows, x_stride, delta_stride)
    if HELD:
        y, square_SR = _times_held(
            held, inputs, y, square_SR, share, SHARE, WIDTH, PROGRAMS, ROWS, NORM, ADD, ROWS_LEFT, SLICES, TILE_D
        )
    else:
        for start in range(0, SHARE, TILE_D):
            here_Smd = _weights(weight_Smd, start, SHARE, TILE_D, SLICES)
            x_SRd, square_SR = _activations(
                inputs, square_SR, share + start, WIDTH, PROGRAMS, ROWS, NORM, ADD, SLICES, TILE_D
            )
            y = _multiplied(here_Smd, x_SRd, y, ROWS_LEFT, SLICES)

    if OVERLAP and not EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    if SLICES > 1:
        y = tl.sum(y, axis=0)
        square_SR = tl.sum(square_SR, axis=0)
    y_ptr += tl.program_id(1).to(tl.int64) * rows * OUTPUTS
    dtype = y_ptr.dtype.element_ty
    y_Rn = _finished(y, square_SR, bias_ptr, weight_m, eps, dtype, WIDTH, ROWS, NORM, GATED, BIAS, ROWS_LEFT, TILE_N)
    output_1n = first + tl.arange(0, TILE_N)[None, :]
    inside_Rn = (row_R < rows)[:, None] & (output_1n < OUTPUTS)
    tl.store(y_ptr + row_R[:, None] * OUTPUTS + output_1n, y_Rn.to(dtype), mask=inside_Rn)


@triton.jit
def _fetch(
    weight_ptr,
    first,
    OUTPUTS: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLITS: tl.constexpr,
    GATED: tl.constexpr,
    PREFETCH_BYTES: tl.constexpr,
    TILE_N: tl.constexpr,
):
    """Prefetches a program's weights, except in the last program, whose weights may end within a tile."""
    if first + TILE_N <= OUTPUTS:
        prefetch_l2(weight_ptr + first.to(tl.int64) * WIDTH, tl.program_id(1), SPLITS, PREFETCH_BYTES)
        if GATED:
            prefetch_l2(weight_ptr + (OUTPUTS + first).to(tl.int64) * WIDTH, tl.program_id(1), SPLITS, PREFETCH_BYTES)


@triton.jit
def _all_weights(weight_Smd, SHARE: tl.constexpr, TILE_D: tl.constexpr, SLICES: tl.constexpr):
    """The weights of every step of the program's share."""
    held = ()
    for start in tl.static_range(0, SHARE, TILE_D):
        held += (_weights(weight_Smd, start, SHARE, TILE_D, SLICES),)  # type: ignore[assignment]
    return held


@triton.jit
def _times_held(
    held,
    inputs,
    y,
    square_SR,
    share,
    SHARE: tl.constexpr,
    WIDTH: tl.constexpr,
    PROGRAMS: tl.constexpr,
    ROWS: tl.constexpr,
    NORM: tl.constexpr,
    ADD: tl.constexpr,
    ROWS_LEFT: tl.constexpr,
    SLICES: tl.constexpr,
    TILE_D: tl.constexpr,
):
    """The product with the result of `_all_weights`: all activations are loaded before the first product."""
    activations = ()
    for start in tl.static_range(0, SHARE, TILE_D):
        x_SRd, square_SR = _activations(
            inputs, square_SR, share + start, WIDTH, PROGRAMS, ROWS, NORM, ADD, SLICES, TILE_D
        )
        activations += (x_SRd,)  # type: ignore[assignment]
    for step in tl.static_range((SHARE + TILE_D - 1) // TILE_D):
        y = _multiplied(held[step], activations[step], y, ROWS_LEFT, SLICES)
    return y, square_SR


@triton.jit
def _weights(weight_Smd, start, SHARE: tl.constexpr, TILE_D: tl.constexpr, SLICES: tl.constexpr):
    if SHARE % TILE_D == 0:
        here_Smd = tl.load(weight_Smd + start)
    else:
        here_Smd = tl.load(weight_Smd + start, mask=start + _across(TILE_D, SLICES) < SHARE, other=0.0)
    return here_Smd


@triton.jit
def _activations(
    inputs,
    square_SR,
    start,
    WIDTH: tl.constexpr,
    PROGRAMS: tl.constexpr,
    ROWS: tl.constexpr,
    NORM: tl.constexpr,
    ADD: tl.constexpr,
    SLICES: tl.constexpr,
    TILE_D: tl.constexpr,
):
    """The rows' factors of the product, and their sums of squares so far."""
    row_SR1 = _upright(tl.arange(0, ROWS), SLICES)
    index_S1d = start + _across(TILE_D, SLICES)
    inside_SRd = row_SR1 < inputs.rows if WIDTH % TILE_D == 0 else (row_SR1 < inputs.rows) & (index_S1d < WIDTH)
    x_SRd = tl.load(inputs.x + row_SR1 * inputs.x_stride + index_S1d, mask=inside_SRd, other=0.0)
    if ADD:
        delta_SRd = tl.load(inputs.delta + row_SR1 * inputs.delta_stride + index_S1d, mask=inside_SRd, other=0.0)
        # Rounded to the stored dtype: the norm applies to the sum that the next layer adds to.
        x_SRd = (x_SRd.to(tl.float32) + delta_SRd.to(tl.float32)).to(x_SRd.dtype)
        # Every program has the whole sum and stores a share of it.
        storing_SR1 = row_SR1 * 0 + start // TILE_D % PROGRAMS == tl.program_id(0)
        tl.store(inputs.total + row_SR1 * WIDTH + index_S1d, x_SRd, mask=inside_SRd & storing_SR1)
    if NORM:
        if WIDTH % TILE_D == 0:
            norm_S1d = tl.load(inputs.norm + index_S1d)
        else:
            norm_S1d = tl.load(inputs.norm + index_S1d, mask=index_S1d < WIDTH, other=0.0)
        exact_SRd = x_SRd.to(tl.float32)
        square_SR += tl.sum(exact_SRd * exact_SRd, axis=-1)
        x_SRd = (exact_SRd * norm_S1d.to(tl.float32)).to(x_SRd.dtype)
    return x_SRd, square_SR


@triton.jit
def _multiplied(weight_Smd, x_SRd, y, ROWS_LEFT: tl.constexpr, SLICES: tl.constexpr):
    if ROWS_LEFT:
        y = tl.dot(x_SRd, _transposed(weight_Smd, SLICES), y, input_precision="ieee")
    else:
        y = tl.dot(weight_Smd, _transposed(x_SRd, SLICES), y, input_precision="ieee")
    return y


@triton.jit
def _finished(
    y,
    square_R,
    bias_ptr,
    weight_m,
    eps,
    dtype: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    BIAS: tl.constexpr,
    ROWS_LEFT: tl.constexpr,
    TILE_N: tl.constexpr,
):
    """Outputs `[ROWS, TILE_N]`: the sums, scaled by the norm, with bias and activation."""
    y_Rm = y if ROWS_LEFT else tl.trans(y)
    if NORM:
        y_Rm *= tl.rsqrt(square_R / WIDTH + eps)[:, None]
    if BIAS:
        y_Rm += tl.load(bias_ptr + weight_m).to(tl.float32)[None, :]
    y_Rn = y_Rm
    if GATED:
        # Rounded where separate operations would round.
        gate_Rn, up_Rn = y_Rm.to(dtype).to(tl.float32).reshape(ROWS, TILE_N, 2).split()
        y_Rn = silu(gate_Rn).to(dtype).to(tl.float32) * up_Rn
    return y_Rn


@triton.jit
def add_parts(
    part_ptr,
    bias_ptr,
    y_ptr,
    part_stride,
    OUTPUTS: tl.constexpr,
    SPLITS: tl.constexpr,
    BIAS: tl.constexpr,
    OVERLAP: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    output_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside_n = output_n < OUTPUTS
    index_n = tl.program_id(0).to(tl.int64) * OUTPUTS + output_n
    y_n = tl.zeros([BLOCK_N], tl.float32)
    for part in tl.static_range(SPLITS):
        y_n += tl.load(part_ptr + part * part_stride + index_n, mask=inside_n, other=0.0)
    if BIAS:
        y_n += tl.load(bias_ptr + output_n, mask=inside_n, other=0.0).to(tl.float32)
    tl.store(y_ptr + index_n, y_n.to(y_ptr.dtype.element_ty), mask=inside_n)


@triton.jit
def _upright(index, SLICES: tl.constexpr):
    return index[None, :, None] if SLICES > 1 else index[:, None]


@triton.jit
def _across(TILE_D: tl.constexpr, SLICES: tl.constexpr):
    """Columns of a tile, slice by slice."""
    column_d = tl.arange(0, TILE_D // SLICES)
    return (
        tl.arange(0, SLICES)[:, None, None] * (TILE_D // SLICES) + column_d[None, None, :]
        if SLICES > 1
        else column_d[None, :]
    )


@triton.jit
def _transposed(tile, SLICES: tl.constexpr):
    return tl.permute(tile, (0, 2, 1)) if SLICES > 1 else tl.trans(tile)
