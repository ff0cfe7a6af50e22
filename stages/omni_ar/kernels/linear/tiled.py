"""Linear maps of some tens of rows: tiles on the matrix units, whose weights are on their way before their inputs are there.

Narrow tiles fill the device, and their warps share the width: each multiplies a slice of it, and the products are added. Wide ones,
for many outputs, are multiplied by all warps together. A norm before the product scales what comes out, not what goes in: only its
weight is multiplied in, the mean square of a row is summed up on the way, and no program reads the rows twice.

Shape legend: R rows, D inputs, N outputs; besides, d inputs and n outputs of one tile, S slices, m the tile's weight rows: its
outputs, or gates and ups in turn.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from omni_ar.kernels.activation.silu import silu
from omni_ar.kernels.fetch import fetch_ahead
from omni_ar.kernels.overlap import overlaps
from omni_ar.kernels.tuning import Config

# The left operand's rows that the matrix units take at a time, and the right one's columns.
_LEFT, _RIGHT = 16, 8
# Outputs of which a program adds the parts up.
_ADDED = 512


def linear(x_RD: Tensor, weight_ND: Tensor, bias_N: Tensor | None, config: Config) -> Tensor:
    """config: a program computes `tile_n` outputs, `tile_d` inputs a step, of which its warps take `slices`; `rows_left`: the rows
    are the left operand, and not the weights; `num_warps`, `num_stages`. While the kernel before still runs, a program asks for its
    weights to come to the L2 cache, if `fetch`, and to itself, if `held`: then it has them all at once. With `splits`, so many
    programs share the width, in whole tiles, and another kernel adds them up."""
    part_PRN = linear_parts(x_RD, weight_ND, config, bias_N)
    if config.get("splits", 1) == 1:
        return part_PRN[0]
    parts, rows, outputs = part_PRN.shape
    y_RN, overlap = x_RD.new_empty(rows, outputs), overlaps(x_RD)
    _add_parts[(rows, triton.cdiv(outputs, _ADDED))](
        part_PRN,
        weight_ND if bias_N is None else bias_N,
        y_RN,
        rows * outputs,
        OUTPUTS=outputs,
        SPLITS=parts,
        BIAS=bias_N is not None,
        OVERLAP=overlap,
        BLOCK_N=_ADDED,
        num_warps=4,
        launch_pdl=overlap,
    )
    return y_RN


def linear_parts(x_RD: Tensor, weight_ND: Tensor, config: Config, bias_N: Tensor | None = None) -> Tensor:
    """`[P, R, N]`: what each split has, in fp32 and without the bias; without splits the whole, in the dtype of the rows."""
    part_PRN, _ = _launch(x_RD, None, None, 0.0, weight_ND, bias_N, False, config)
    return part_PRN


def gated_linear(x_RD: Tensor, weight_ND: Tensor, bias_N: Tensor | None, config: Config) -> Tensor:
    y_1RN, _ = _launch(x_RD, None, None, 0.0, weight_ND, bias_N, True, {**config, "splits": 1})
    return y_1RN[0]


def norm_linear(
    x_RD: Tensor,
    delta_RD: Tensor | None,
    norm_D: Tensor,
    eps: float,
    weight_ND: Tensor,
    bias_N: Tensor | None,
    gated: bool,
    config: Config,
) -> tuple[Tensor, Tensor]:
    """Not for fp16 activations above 65504 over the largest norm weight: what is multiplied is not yet scaled down."""
    y_1RN, sum_RD = _launch(x_RD, delta_RD, norm_D, eps, weight_ND, bias_N, gated, {**config, "splits": 1})
    return y_1RN[0], sum_RD


def _launch(
    x_RD: Tensor,
    delta_RD: Tensor | None,
    norm_D: Tensor | None,
    eps: float,
    weight_ND: Tensor,
    bias_N: Tensor | None,
    gated: bool,
    config: Config,
) -> tuple[Tensor, Tensor]:
    rows, width = x_RD.shape
    outputs = weight_ND.shape[0] // (2 if gated else 1)
    splits = config.get("splits", 1)
    part_PRN = x_RD.new_empty(splits, rows, outputs, dtype=torch.float32 if splits > 1 else x_RD.dtype)
    sum_RD = x_RD if delta_RD is None else torch.empty_like(x_RD, memory_format=torch.contiguous_format)
    delta = x_RD if delta_RD is None else delta_RD
    tile_n, rows_left, overlap = config["tile_n"], config.get("rows_left", 0) > 0, overlaps(x_RD)
    fetched = tile_n * width * weight_ND.element_size() if overlap and config.get("fetch", 1) else 0
    _some_rows[(triton.cdiv(outputs, tile_n), splits)](
        x_RD,
        delta,
        weight_ND if norm_D is None else norm_D,
        sum_RD,
        weight_ND,
        weight_ND if bias_N is None else bias_N,
        part_PRN,
        rows,
        x_RD.stride(0),
        delta.stride(0),
        eps,
        OUTPUTS=outputs,
        WIDTH=width,
        SPLITS=splits,
        ROWS=max(triton.next_power_of_2(rows), _LEFT if rows_left else _RIGHT),
        NORM=norm_D is not None,
        ADD=delta_RD is not None,
        GATED=gated,
        BIAS=bias_N is not None and splits == 1,
        ROWS_LEFT=rows_left,
        SLICES=config.get("slices", 1),
        FETCHED=fetched if fetched % 16 == 0 else 0,
        HELD=config.get("held", 0) > 0,
        OVERLAP=overlap,
        TILE_N=tile_n,
        TILE_D=config["tile_d"],
        num_warps=config["num_warps"],
        num_stages=config["num_stages"],
        launch_pdl=overlap,
    )
    return part_PRN, sum_RD


@triton.jit(do_not_specialize=["rows"])
def _some_rows(
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
    FETCHED: tl.constexpr,
    HELD: tl.constexpr,
    OVERLAP: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_D: tl.constexpr,
):
    first = tl.program_id(0) * TILE_N
    HALVES: tl.constexpr = 2 if GATED else 1
    PROGRAMS: tl.constexpr = (OUTPUTS + TILE_N - 1) // TILE_N
    SHARE: tl.constexpr = WIDTH // SPLITS
    half_m = tl.arange(0, HALVES * TILE_N)
    # Gate and up in turn; outputs past the last are computed twice and not stored.
    weight_m = tl.minimum(first + half_m // HALVES, OUTPUTS - 1).to(tl.int64) + half_m % HALVES * OUTPUTS
    share = tl.program_id(1) * SHARE
    weight_Smd = weight_ptr + _upright(weight_m, SLICES) * WIDTH + share + _across(TILE_D, SLICES)
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        # The weights of the last program may end before a whole tile does.
        if first + TILE_N <= OUTPUTS:
            fetch_ahead(weight_ptr + first.to(tl.int64) * WIDTH, tl.program_id(1), SPLITS, FETCHED)
            if GATED:
                fetch_ahead(weight_ptr + (OUTPUTS + first).to(tl.int64) * WIDTH, tl.program_id(1), SPLITS, FETCHED)
    held = ()
    if HELD:
        for start in tl.static_range(0, SHARE, TILE_D):
            held += (_weights(weight_Smd, start, SHARE, TILE_D, SLICES),)  # type: ignore[assignment]
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    row_R = tl.arange(0, ROWS)
    LEFT: tl.constexpr = ROWS if ROWS_LEFT else HALVES * TILE_N
    RIGHT: tl.constexpr = HALVES * TILE_N if ROWS_LEFT else ROWS
    square_SR = tl.zeros([SLICES, ROWS] if SLICES > 1 else [ROWS], tl.float32)
    y = tl.zeros([SLICES, LEFT, RIGHT] if SLICES > 1 else [LEFT, RIGHT], tl.float32)
    if HELD:
        # All are asked for before the first is multiplied.
        activations = ()
        for start in tl.static_range(0, SHARE, TILE_D):
            x_SRd, square_SR = _activations(
                x_ptr,
                delta_ptr,
                norm_ptr,
                sum_ptr,
                square_SR,
                share + start,
                rows,
                x_stride,
                delta_stride,
                WIDTH,
                PROGRAMS,
                ROWS,
                NORM,
                ADD,
                SLICES,
                TILE_D,
            )
            activations += (x_SRd,)  # type: ignore[assignment]
        for step in tl.static_range((SHARE + TILE_D - 1) // TILE_D):
            y = _multiplied(held[step], activations[step], y, ROWS_LEFT, SLICES)
    else:
        for start in range(0, SHARE, TILE_D):
            here_Smd = _weights(weight_Smd, start, SHARE, TILE_D, SLICES)
            x_SRd, square_SR = _activations(
                x_ptr,
                delta_ptr,
                norm_ptr,
                sum_ptr,
                square_SR,
                share + start,
                rows,
                x_stride,
                delta_stride,
                WIDTH,
                PROGRAMS,
                ROWS,
                NORM,
                ADD,
                SLICES,
                TILE_D,
            )
            y = _multiplied(here_Smd, x_SRd, y, ROWS_LEFT, SLICES)

    if SLICES > 1:
        y = tl.sum(y, axis=0)
        square_SR = tl.sum(square_SR, axis=0)
    y_ptr += tl.program_id(1).to(tl.int64) * rows * OUTPUTS
    y_Rm = y if ROWS_LEFT else tl.trans(y)
    if NORM:
        y_Rm *= tl.rsqrt(square_SR / WIDTH + eps)[:, None]
    if BIAS:
        y_Rm += tl.load(bias_ptr + weight_m).to(tl.float32)[None, :]
    dtype = y_ptr.dtype.element_ty
    y_Rn = y_Rm
    if GATED:
        # Rounded where separate operations would round.
        gate_Rn, up_Rn = y_Rm.to(dtype).to(tl.float32).reshape(ROWS, TILE_N, 2).split()
        y_Rn = silu(gate_Rn).to(dtype).to(tl.float32) * up_Rn
    output_1n = first + tl.arange(0, TILE_N)[None, :]
    inside_Rn = (row_R < rows)[:, None] & (output_1n < OUTPUTS)
    tl.store(y_ptr + row_R[:, None] * OUTPUTS + output_1n, y_Rn.to(dtype), mask=inside_Rn)


@triton.jit
def _weights(weight_Smd, start, SHARE: tl.constexpr, TILE_D: tl.constexpr, SLICES: tl.constexpr):
    if SHARE % TILE_D == 0:
        here_Smd = tl.load(weight_Smd + start)
    else:
        here_Smd = tl.load(weight_Smd + start, mask=start + _across(TILE_D, SLICES) < SHARE, other=0.0)
    return here_Smd


@triton.jit
def _activations(
    x_ptr,
    delta_ptr,
    norm_ptr,
    sum_ptr,
    square_SR,
    start,
    rows,
    x_stride,
    delta_stride,
    WIDTH: tl.constexpr,
    PROGRAMS: tl.constexpr,
    ROWS: tl.constexpr,
    NORM: tl.constexpr,
    ADD: tl.constexpr,
    SLICES: tl.constexpr,
    TILE_D: tl.constexpr,
):
    """What is multiplied of the rows, and their squares so far."""
    row_SR1 = _upright(tl.arange(0, ROWS), SLICES)
    place_S1d = start + _across(TILE_D, SLICES)
    inside_SRd = row_SR1 < rows if WIDTH % TILE_D == 0 else (row_SR1 < rows) & (place_S1d < WIDTH)
    x_SRd = tl.load(x_ptr + row_SR1 * x_stride + place_S1d, mask=inside_SRd, other=0.0)
    if ADD:
        delta_SRd = tl.load(delta_ptr + row_SR1 * delta_stride + place_S1d, mask=inside_SRd, other=0.0)
        # Rounded as it is stored: what is normed is what the next layer adds to.
        x_SRd = (x_SRd.to(tl.float32) + delta_SRd.to(tl.float32)).to(x_SRd.dtype)
        # Every program has the whole sum, and each stores its share.
        storing_SR1 = row_SR1 * 0 + start // TILE_D % PROGRAMS == tl.program_id(0)
        tl.store(sum_ptr + row_SR1 * WIDTH + place_S1d, x_SRd, mask=inside_SRd & storing_SR1)
    if NORM:
        if WIDTH % TILE_D == 0:
            norm_S1d = tl.load(norm_ptr + place_S1d)
        else:
            norm_S1d = tl.load(norm_ptr + place_S1d, mask=place_S1d < WIDTH, other=0.0)
        exact_SRd = x_SRd.to(tl.float32)
        square_SR += tl.sum(exact_SRd * exact_SRd, axis=-1)
        x_SRd = (exact_SRd * norm_S1d.to(tl.float32)).to(x_SRd.dtype)
    return x_SRd, square_SR


@triton.jit
def _multiplied(weight_Smd, x_SRd, y, ROWS_LEFT: tl.constexpr, SLICES: tl.constexpr):
    if ROWS_LEFT:
        y = tl.dot(x_SRd, _turned(weight_Smd, SLICES), y, input_precision="ieee")
    else:
        y = tl.dot(weight_Smd, _turned(x_SRd, SLICES), y, input_precision="ieee")
    return y


@triton.jit
def _add_parts(
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
    place_n = tl.program_id(0).to(tl.int64) * OUTPUTS + output_n
    y_n = tl.zeros([BLOCK_N], tl.float32)
    for part in tl.static_range(SPLITS):
        y_n += tl.load(part_ptr + part * part_stride + place_n, mask=inside_n, other=0.0)
    if BIAS:
        y_n += tl.load(bias_ptr + output_n, mask=inside_n, other=0.0).to(tl.float32)
    tl.store(y_ptr + place_n, y_n.to(y_ptr.dtype.element_ty), mask=inside_n)


@triton.jit
def _upright(place, SLICES: tl.constexpr):
    return place[None, :, None] if SLICES > 1 else place[:, None]


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
def _turned(tile, SLICES: tl.constexpr):
    return tl.permute(tile, (0, 2, 1)) if SLICES > 1 else tl.trans(tile)
