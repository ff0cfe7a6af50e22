"""An implicit matrix product: a tile of positions by output channels, summed over taps and input channels.

The activation is computed here, once per number, where the number is still in a register: behind the convolution before it
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
    """block_m: positions per tile. block_n: output channels per tile. block_k: input channels per step of the sum."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


_TILES = (
    ConvSettings(128, 128, 64, 4, 3),
    ConvSettings(128, 64, 64, 4, 4),
    ConvSettings(64, 64, 64, 4, 4),
    ConvSettings(64, 32, 64, 4, 5),
    ConvSettings(16, 32, 64, 2, 6),
)
"""From the largest: each needs less data per product, and the next gives more programs."""
_PROGRAMS = 132
"""Number of programs that fill a device."""


def choose_settings(x_BLC: Tensor, weight_KCN: Tensor) -> ConvSettings:
    """The largest tile of which there are enough to fill a device. Measured on an H200: benchmarks/tune/causal_conv.py."""
    if x_BLC.dtype.itemsize > 2:
        # Without matrix units at this precision, operands are held in registers.
        return ConvSettings(block_m=32, block_n=32, block_k=16, num_warps=4, num_stages=1)
    taps, channels, outputs = weight_KCN.shape
    positions = x_BLC.shape[0] * x_BLC.shape[1]
    if outputs >= 320:
        widest = 128
    elif outputs < 32:
        widest = max(16, triton.next_power_of_2(outputs))  # more columns would be empty
    else:
        widest = 32 if taps == 1 else 64  # a product of one tap waits for memory alone
    for tile in _TILES:
        chosen = tile._replace(block_n=min(tile.block_n, widest), block_k=64 if channels % 64 == 0 else 32)
        if triton.cdiv(positions, chosen.block_m) * triton.cdiv(outputs, chosen.block_n) >= _PROGRAMS:
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
    tiles_n = triton.cdiv(outputs, settings.block_n)
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
):
    tile_m, tile_n = tl.program_id(0) // tiles_n, tl.program_id(0) % tiles_n
    index_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    live_m = index_m < count
    # Positions beyond the end are read from the last position, and are not written.
    safe_m = tl.minimum(index_m, count - 1)
    row_m = (safe_m // positions).to(tl.int64)
    position_m = safe_m % positions
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    live_n = n < outputs
    k = tl.arange(0, BLOCK_K)
    x_mk = x_ptr + (row_m * x_stride + position_m * channels)[:, None] + k[None, :]
    weight_kn = weight_ptr + k[:, None] * outputs + n[None, :]

    sum_mn = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    steps = tl.cdiv(channels, BLOCK_K)
    for step in range(taps * steps):
        tap = step // steps
        first = (step % steps) * BLOCK_K
        x_at = x_mk + (tap * dilation * channels + first)
        weight_at = weight_kn + (tap * channels + first).to(tl.int64) * outputs
        if WHOLE:
            a_mk = tl.load(x_at)
            b_kn = tl.load(weight_at, mask=live_n[None, :], other=0.0)
        else:
            live_k = first + k < channels
            a_mk = tl.load(x_at, mask=live_k[None, :], other=0.0)
            b_kn = tl.load(weight_at, mask=live_k[:, None] & live_n[None, :], other=0.0)
        sum_mn = tl.dot(a_mk, b_kn, sum_mn, input_precision="ieee")

    sum_mn += tl.load(bias_ptr + n, mask=live_n, other=0.0).to(tl.float32)[None, :]
    live_mn = live_m[:, None] & live_n[None, :]
    at_mn = (position_m * outputs)[:, None] + n[None, :]
    if RESIDUAL:
        residual_mn = tl.load(residual_ptr + (row_m * residual_stride)[:, None] + at_mn, mask=live_mn, other=0.0)
        sum_mn += residual_mn.to(tl.float32)
    if SUM:
        kept_mn = sum_mn.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + (row_m * sum_stride)[:, None] + at_mn, kept_mn, mask=live_mn)
    if ACTIVATED:
        frequency_n, divisor_n = load_snake(alpha_ptr, beta_ptr, n % snake_channels, live_n)
        sine_mn = sine_of_half_turns(sum_mn * frequency_n[None, :])
        active_mn = sum_mn + sine_mn * sine_mn / divisor_n[None, :]
        active_mn = active_mn.to(activated_ptr.dtype.element_ty)
        tl.store(activated_ptr + (row_m * activated_stride)[:, None] + at_mn, active_mn, mask=live_mn)
