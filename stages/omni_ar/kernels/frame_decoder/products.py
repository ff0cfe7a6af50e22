"""Linear maps of a phase: a program computes the outputs of every `PROGRAMS`-th tile.

The weights of its first tile are loaded by `held_weights`, which reads no memory that a kernel writes: a program calls it
before it waits for the others, and the weights are on their way meanwhile. Loads come first, their uses behind them: the
synchronization of its warps keeps the compiler from loading ahead. The warps of a program split the inputs of a step into
slices, whose products are added at the end.

Shape legend: R rows (tokens) of a block, S slices, m weight rows of a tile, n outputs of a tile, d inputs of a slice.
"""

import triton
import triton.language as tl

from omni_ar.kernels.activation.silu import silu
from omni_ar.kernels.frame_decoder.barrier import here
from omni_ar.kernels.prefetch import prefetch_l2

# Elements of the rows that a program may hold in registers, and steps whose rows are loaded ahead.
_MOST_HELD = tl.constexpr(2**15)
_AHEAD = tl.constexpr(4)


@triton.jit
def held_weights(
    program,
    weight_ptr,
    OUTPUTS: tl.constexpr,
    WIDTH: tl.constexpr,
    GATED: tl.constexpr,
    SLICES: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_D: tl.constexpr,
):
    """The weights `[S, m, d]` of each step of a program's first tile: a tuple for `product`."""
    return _tile_weights(weight_ptr, program, OUTPUTS, WIDTH, GATED, SLICES, TILE_N, TILE_D)


@triton.jit
def fetch_tiles(
    program,
    weight_ptr,
    FIRST: tl.constexpr,
    OUTPUTS: tl.constexpr,
    WIDTH: tl.constexpr,
    GATED: tl.constexpr,
    TILE_N: tl.constexpr,
    PROGRAMS: tl.constexpr,
    WAITS: tl.constexpr,
):
    """Prefetches a program's tiles from the FIRST of them on into the L2 cache; a no-op without WAITS."""
    if WAITS:
        TILES: tl.constexpr = (OUTPUTS + TILE_N - 1) // TILE_N
        BYTES: tl.constexpr = TILE_N * WIDTH * weight_ptr.dtype.element_ty.primitive_bitwidth // 8
        for tile in tl.range(program + FIRST * PROGRAMS, TILES, PROGRAMS, num_stages=1):
            # The last tile may be cut off.
            if (tile + 1) * TILE_N <= OUTPUTS:
                prefetch_l2(weight_ptr + tile.to(tl.int64) * (TILE_N * WIDTH), 0, 1, BYTES)
                if GATED:
                    prefetch_l2(weight_ptr + (tile.to(tl.int64) * TILE_N + OUTPUTS) * WIDTH, 0, 1, BYTES)


@triton.jit
def held_norm(norm_ptr, WIDTH: tl.constexpr, SLICES: tl.constexpr, TILE_D: tl.constexpr):
    """The norm's weights `[S, 1, d]` of each step: a tuple for `product`."""
    norms = ()
    for start in tl.static_range(0, WIDTH, TILE_D):
        index_S1d = start + _across(TILE_D, SLICES)
        norms += (tl.load(norm_ptr + index_S1d, mask=index_S1d < WIDTH, other=0.0),)  # type: ignore[assignment]
    return norms


@triton.jit
def product(
    program,
    held,
    norms,
    x_ptr,
    x_stride,
    tokens,
    eps,
    weight_ptr,
    y_ptr,
    OUTPUTS: tl.constexpr,
    WIDTH: tl.constexpr,
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    ADD: tl.constexpr,
    PROGRAMS: tl.constexpr,
    COMPILES: tl.constexpr,
    ROWS: tl.constexpr,
    SLICES: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_D: tl.constexpr,
    ROWS_LEFT: tl.constexpr,
):
    """`y = x @ weight.T`, with NORM of the normalized rows. GATED: the outputs are gate, then up, and y is
    `silu(gate) * up`. ADD: the product is added to y. Rounded where separate operations would round.

    x: `tokens` rows of WIDTH, at most ROWS. y: dense rows of OUTPUTS. held: of `held_weights`, for the same sizes. norms: of
    `held_norm`, with NORM. COMPILES: False under the interpreter.
    """
    TILES: tl.constexpr = (OUTPUTS + TILE_N - 1) // TILE_N
    HOLDS: tl.constexpr = NORM and ROWS * WIDTH <= _MOST_HELD
    rows = ()
    if HOLDS:
        for start in tl.static_range(0, WIDTH, TILE_D):
            rows += (_rows(x_ptr, x_stride, tokens, start, WIDTH, ROWS, SLICES, TILE_D),)  # type: ignore[assignment]
    scale_R = _scales(rows, x_ptr, x_stride, tokens, eps, WIDTH, NORM, HOLDS, ROWS, SLICES, TILE_D)
    if TILES <= PROGRAMS:
        if program < TILES:
            _finish_tile(
                program, held, norms, rows, scale_R, x_ptr, x_stride, tokens, y_ptr,
                OUTPUTS, WIDTH, NORM, GATED, ADD, HOLDS, COMPILES, ROWS, SLICES, TILE_N, TILE_D, ROWS_LEFT,
            )  # fmt: skip
    else:
        weights = held
        for tile in tl.range(program, TILES, PROGRAMS, num_stages=1):
            # On their way while this tile is multiplied.
            following = _tile_weights(weight_ptr, tile + PROGRAMS, OUTPUTS, WIDTH, GATED, SLICES, TILE_N, TILE_D)
            _finish_tile(
                tile, weights, norms, rows, scale_R, x_ptr, x_stride, tokens, y_ptr,
                OUTPUTS, WIDTH, NORM, GATED, ADD, HOLDS, COMPILES, ROWS, SLICES, TILE_N, TILE_D, ROWS_LEFT,
            )  # fmt: skip
            weights = following


@triton.jit
def _tile_weights(
    weight_ptr,
    tile,
    OUTPUTS: tl.constexpr,
    WIDTH: tl.constexpr,
    GATED: tl.constexpr,
    SLICES: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_D: tl.constexpr,
):
    """Past the last output they are zeros, and nothing is read."""
    HALVES: tl.constexpr = 2 if GATED else 1
    half_1m1 = tl.arange(0, HALVES * TILE_N)[None, :, None]
    # Gate and up alternate.
    output_1m1 = tile * TILE_N + half_1m1 // HALVES
    weight_1m1 = weight_ptr + (output_1m1 + half_1m1 % HALVES * OUTPUTS).to(tl.int64) * WIDTH
    weights = ()
    for start in tl.static_range(0, WIDTH, TILE_D):
        index_S1d = start + _across(TILE_D, SLICES)
        inside_Smd = output_1m1 < OUTPUTS
        if WIDTH % TILE_D != 0:
            inside_Smd = inside_Smd & (index_S1d < WIDTH)
        weights += (tl.load(weight_1m1 + index_S1d, mask=inside_Smd, other=0.0),)  # type: ignore[assignment]
    return weights


@triton.jit
def _scales(
    rows,
    x_ptr,
    x_stride,
    tokens,
    eps,
    WIDTH: tl.constexpr,
    NORM: tl.constexpr,
    HOLDS: tl.constexpr,
    ROWS: tl.constexpr,
    SLICES: tl.constexpr,
    TILE_D: tl.constexpr,
):
    """The norm's scale of each row. rows: the whole rows, step by step, with HOLDS."""
    square_SR = tl.zeros([SLICES, ROWS], tl.float32)
    if NORM:
        for step in tl.static_range((WIDTH + TILE_D - 1) // TILE_D):
            if HOLDS:
                x_SRd = rows[step].to(tl.float32)
            else:
                x_SRd = _rows(x_ptr, x_stride, tokens, step * TILE_D, WIDTH, ROWS, SLICES, TILE_D).to(tl.float32)
            square_SR += tl.sum(x_SRd * x_SRd, axis=2)
    return tl.rsqrt(tl.sum(square_SR, axis=0) / WIDTH + eps)


@triton.jit
def _finish_tile(
    tile,
    weights,
    norms,
    rows,
    scale_R,
    x_ptr,
    x_stride,
    tokens,
    y_ptr,
    OUTPUTS: tl.constexpr,
    WIDTH: tl.constexpr,
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    ADD: tl.constexpr,
    HOLDS: tl.constexpr,
    COMPILES: tl.constexpr,
    ROWS: tl.constexpr,
    SLICES: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_D: tl.constexpr,
    ROWS_LEFT: tl.constexpr,
):
    HALVES: tl.constexpr = 2 if GATED else 1
    LEFT: tl.constexpr = ROWS if ROWS_LEFT else HALVES * TILE_N
    RIGHT: tl.constexpr = HALVES * TILE_N if ROWS_LEFT else ROWS
    dtype = y_ptr.dtype.element_ty
    y = tl.zeros([SLICES, LEFT, RIGHT], tl.float32)
    STEPS: tl.constexpr = (WIDTH + TILE_D - 1) // TILE_D
    AHEAD: tl.constexpr = 0 if HOLDS else _AHEAD
    for coming in tl.static_range(STEPS + AHEAD):
        if coming < STEPS and not HOLDS:
            rows += (_rows(x_ptr, x_stride, tokens, coming * TILE_D, WIDTH, ROWS, SLICES, TILE_D),)
        if coming >= AHEAD:
            x_SRd = here(rows[coming - AHEAD], COMPILES)
            if NORM:
                norm_S1d = here(norms[coming - AHEAD], COMPILES).to(tl.float32)
                x_SRd = (x_SRd.to(tl.float32) * scale_R[None, :, None] * norm_S1d).to(x_SRd.dtype)
            weight_Smd = here(weights[coming - AHEAD], COMPILES)
            if ROWS_LEFT:
                y = tl.dot(x_SRd, tl.permute(weight_Smd, (0, 2, 1)), y, input_precision="ieee")
            else:
                y = tl.dot(weight_Smd, tl.permute(x_SRd, (0, 2, 1)), y, input_precision="ieee")
    y_Rm = tl.sum(y, axis=0)
    if not ROWS_LEFT:
        y_Rm = tl.trans(y_Rm)
    y_Rm = y_Rm.to(dtype)
    if GATED:
        gate_Rn, up_Rn = y_Rm.to(tl.float32).reshape(ROWS, TILE_N, 2).split()
        y_Rn = (silu(gate_Rn).to(dtype).to(tl.float32) * up_Rn).to(dtype)
    else:
        y_Rn = y_Rm
    row_R1 = tl.arange(0, ROWS)[:, None]
    output_1n = tile * TILE_N + tl.arange(0, TILE_N)[None, :]
    inside_Rn = (row_R1 < tokens) & (output_1n < OUTPUTS)
    y_ptr += row_R1 * OUTPUTS + output_1n
    if ADD:
        y_Rn = (tl.load(y_ptr, mask=inside_Rn, other=0.0).to(tl.float32) + y_Rn.to(tl.float32)).to(dtype)
    tl.store(y_ptr, y_Rn, mask=inside_Rn)


@triton.jit
def _rows(
    x_ptr,
    x_stride,
    tokens,
    start,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    SLICES: tl.constexpr,
    TILE_D: tl.constexpr,
):
    row_1R1 = tl.arange(0, ROWS)[None, :, None]
    index_S1d = start + _across(TILE_D, SLICES)
    inside_SRd = row_1R1 < tokens
    if WIDTH % TILE_D != 0:
        inside_SRd = inside_SRd & (index_S1d < WIDTH)
    return tl.load(x_ptr + row_1R1 * x_stride + index_S1d, mask=inside_SRd, other=0.0)


@triton.jit
def _across(TILE_D: tl.constexpr, SLICES: tl.constexpr):
    """Inputs of a step, slice by slice, `[S, 1, d]`."""
    WIDTH: tl.constexpr = TILE_D // SLICES
    return tl.arange(0, SLICES)[:, None, None] * WIDTH + tl.arange(0, WIDTH)[None, None, :]
