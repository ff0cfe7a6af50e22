"""An implicit matrix product: a tile of positions by output channels, summed over taps and input channels.

The activation is computed here, once per number, where the number is still in a register: after the convolution before it
instead of before the one that reads it, which would compute it once per tap. Rows of the batch and their positions are one
dimension, so that short chunks of many streams fill tiles.

Shape legend: see the package; besides, m positions and n channels of a tile, k channels of a step of the sum.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from omni_frames.kernels.snake import load_snake, sine_of_half_turns
from omni_vocoder.kernels.causal_conv.reference import Snake


class ConvSettings(NamedTuple):
    """block_m: positions per tile. block_n: output channels per tile. block_k: input channels per step of the sum.

    rest_n: further output channels of a tile, in a tensor of their own, since a kernel's tensors have sizes that are powers of two:
    96 channels are 64 and 32. 0 for none.
    """

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    rest_n: int = 0


_TILES = (
    ConvSettings(256, 128, 64, 8, 3),
    ConvSettings(128, 128, 64, 4, 3),
    ConvSettings(128, 64, 64, 4, 4),
    ConvSettings(64, 64, 64, 4, 4),
    ConvSettings(64, 32, 64, 4, 5),
    ConvSettings(16, 32, 64, 2, 6),
)
"""Tiles, the largest first: each needs less data per product, and the next gives more programs."""
_PROGRAMS = 132
"""Number of programs that fill a device."""


def choose_settings(x_BLC: Tensor, weight_KCN: Tensor) -> ConvSettings:
    """The largest tile of which there are enough to fill a device. Measured on an H200: benchmarks/tune/causal_conv.py."""
    if x_BLC.dtype.itemsize > 2:
        # Without matrix units at this precision, operands are held in registers.
        return ConvSettings(block_m=32, block_n=32, block_k=16, num_warps=4, num_stages=1)
    taps, channels, outputs = weight_KCN.shape
    positions = x_BLC.shape[0] * x_BLC.shape[1]
    many, long = outputs >= 320, taps * channels >= 1024
    if outputs < 32:
        widest = max(16, triton.next_power_of_2(outputs))  # more columns would be empty
    elif taps == 1:
        widest = 64 if outputs % 64 == 0 else 32  # memory bounds a product of one tap
    else:
        widest = 128 if many and long else 64
    block_k = 64 if channels % 64 == 0 else 32
    for tile in _TILES if many and long else _TILES[1:]:
        chosen = tile._replace(block_n=min(tile.block_n, widest), block_k=block_k)
        if taps > 1 and not many and outputs % 96 == 0 and (chosen.block_m, chosen.block_n) == (128, 64):
            # Inputs are read once for 96 outputs.
            chosen = chosen._replace(rest_n=32, num_stages=3 if block_k == 64 else 4)
        tiles_n = triton.cdiv(outputs, chosen.block_n + chosen.rest_n)
        # A multiprocessor runs one of the largest tiles at a time, so the end of a launch that fills the device only once is long.
        if triton.cdiv(positions, chosen.block_m) * tiles_n >= _PROGRAMS * max(chosen.block_m // 128, 1):
            break
    return chosen


def causal_conv(
    x_BLC: Tensor,
    weight_KCN: Tensor,
    bias_N: Tensor,
    dilation: int,
    residual_BTN: Tensor | None,
    snake: Snake | None,
    sum_BTN: Tensor | None,
    activated_BTN: Tensor | None,
    *,
    settings: ConvSettings,
) -> None:
    """Launches the kernel. Arguments as for the package's function, which chooses the settings."""
    rows, length, channels = x_BLC.shape
    taps, _, outputs = weight_KCN.shape
    positions = length - (taps - 1) * dilation
    alpha, beta = snake if snake is not None else (bias_N, bias_N)
    tiles_n = triton.cdiv(outputs, settings.block_n + settings.rest_n)
    _causal_conv[(triton.cdiv(rows * positions, settings.block_m) * tiles_n,)](
        x_BLC,
        weight_KCN,
        bias_N,
        _or(residual_BTN, x_BLC),
        alpha,
        beta,
        _or(sum_BTN, x_BLC),
        _or(activated_BTN, x_BLC),
        rows * positions,
        positions,
        channels,
        outputs,
        taps,
        dilation,
        alpha.shape[0],
        tiles_n,
        x_BLC.stride(0),
        _or(residual_BTN, x_BLC).stride(0),
        _or(sum_BTN, x_BLC).stride(0),
        _or(activated_BTN, x_BLC).stride(0),
        RESIDUAL=residual_BTN is not None,
        SUM=sum_BTN is not None,
        ACTIVATED=activated_BTN is not None,
        WHOLE=channels % settings.block_k == 0,
        BLOCK_M=settings.block_m,
        BLOCK_N=settings.block_n,
        BLOCK_K=settings.block_k,
        REST_N=settings.rest_n,
        num_warps=settings.num_warps,
        num_stages=settings.num_stages,
    )


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """A stand-in for an absent tensor, never read or written."""
    return other if tensor is None else tensor


@triton.jit(do_not_specialize=["count", "positions", "taps", "dilation", "tiles_n"])
def _causal_conv(
    x_ptr,
    weight_ptr,
    bias_ptr,
    residual_ptr,
    alpha_ptr,
    beta_ptr,
    sum_ptr,
    activated_ptr,
    count,
    positions,
    channels,
    outputs,
    taps,
    dilation,
    snake_channels,
    tiles_n,
    x_stride,
    residual_stride,
    sum_stride,
    activated_stride,
    RESIDUAL: tl.constexpr,
    SUM: tl.constexpr,
    ACTIVATED: tl.constexpr,
    WHOLE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    REST_N: tl.constexpr,
):
    tile_m, tile_n = tl.program_id(0) // tiles_n, tl.program_id(0) % tiles_n
    index_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    live_m = index_m < count
    # Positions beyond the end are read from the last position, and are not written.
    safe_m = tl.minimum(index_m, count - 1)
    row_m = (safe_m // positions).to(tl.int64)
    position_m = safe_m % positions
    n = tile_n * (BLOCK_N + REST_N) + tl.arange(0, BLOCK_N)
    rest_n = tile_n * (BLOCK_N + REST_N) + BLOCK_N + tl.arange(0, max(REST_N, 1))
    x_m = x_ptr + row_m * x_stride + position_m * channels
    sum_mn = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    rest_mn = tl.zeros([BLOCK_M, REST_N], tl.float32) if REST_N else sum_mn
    steps = tl.cdiv(channels, BLOCK_K)
    for step in range(taps * steps):
        tap = step // steps
        first = (step % steps) * BLOCK_K
        x_at_m = x_m + tap * dilation * channels
        weight_at = weight_ptr + tap.to(tl.int64) * channels * outputs
        a_mk = _load_x(x_at_m, first, channels, WHOLE, BLOCK_K)
        sum_mn = tl.dot(
            a_mk, _load_weight(weight_at, first, n, channels, outputs, WHOLE, BLOCK_K), sum_mn, input_precision="ieee"
        )
        if REST_N:
            b_kn = _load_weight(weight_at, first, rest_n, channels, outputs, WHOLE, BLOCK_K)
            rest_mn = tl.dot(a_mk, b_kn, rest_mn, input_precision="ieee")

    residual_m = residual_ptr + row_m * residual_stride + position_m * outputs
    sum_m = sum_ptr + row_m * sum_stride + position_m * outputs
    activated_m = activated_ptr + row_m * activated_stride + position_m * outputs
    _finish(
        sum_mn, n, live_m, residual_m, sum_m, activated_m, bias_ptr, alpha_ptr, beta_ptr, outputs, snake_channels,
        RESIDUAL, SUM, ACTIVATED,
    )  # fmt: skip
    if REST_N:
        _finish(
            rest_mn, rest_n, live_m, residual_m, sum_m, activated_m, bias_ptr, alpha_ptr, beta_ptr, outputs,
            snake_channels, RESIDUAL, SUM, ACTIVATED,
        )  # fmt: skip


@triton.jit
def _load_x(x_m, first, channels, WHOLE: tl.constexpr, BLOCK_K: tl.constexpr):
    k = first + tl.arange(0, BLOCK_K)
    if WHOLE:
        return tl.load(x_m[:, None] + k[None, :])
    return tl.load(x_m[:, None] + k[None, :], mask=(k < channels)[None, :], other=0.0)


@triton.jit
def _load_weight(weight_ptr, first, n, channels, outputs, WHOLE: tl.constexpr, BLOCK_K: tl.constexpr):
    k = first + tl.arange(0, BLOCK_K)
    live_kn = (n < outputs)[None, :] if WHOLE else (k < channels)[:, None] & (n < outputs)[None, :]
    return tl.load(weight_ptr + k[:, None] * outputs + n[None, :], mask=live_kn, other=0.0)


@triton.jit
def _finish(
    sum_mn,
    n,
    live_m,
    residual_m,
    sum_m,
    activated_m,
    bias_ptr,
    alpha_ptr,
    beta_ptr,
    outputs,
    snake_channels,
    RESIDUAL: tl.constexpr,
    SUM: tl.constexpr,
    ACTIVATED: tl.constexpr,
):
    """Adds bias and residual, and writes the sums and their activations. n: the output channels."""
    live_n = n < outputs
    live_mn = live_m[:, None] & live_n[None, :]
    sum_mn += tl.load(bias_ptr + n, mask=live_n, other=0.0).to(tl.float32)[None, :]
    if RESIDUAL:
        sum_mn += tl.load(residual_m[:, None] + n[None, :], mask=live_mn, other=0.0).to(tl.float32)
    if SUM:
        tl.store(sum_m[:, None] + n[None, :], sum_mn.to(sum_m.dtype.element_ty), mask=live_mn)
    if ACTIVATED:
        frequency_n, divisor_n = load_snake(alpha_ptr, beta_ptr, n % snake_channels, live_n)
        sine_mn = sine_of_half_turns(sum_mn * frequency_n[None, :])
        active_mn = sum_mn + sine_mn * sine_mn / divisor_n[None, :]
        tl.store(activated_m[:, None] + n[None, :], active_mn.to(activated_m.dtype.element_ty), mask=live_mn)
