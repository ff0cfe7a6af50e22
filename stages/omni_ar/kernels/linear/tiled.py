"""Linear maps of some tens of rows: tiles on the matrix units, whose weights are loaded before their inputs are
complete.

Narrow tiles fill the device, and their warps share the width: each multiplies a slice of it, and the products are
added. All warps together multiply a wide tile, for many outputs. A norm before the product is applied to the outputs:
the inputs are multiplied by its weight only, the mean square of a row is accumulated during the product, and no program
reads the rows twice.

Shape legend: R rows, D inputs, N outputs; besides, d inputs and n outputs of one tile, S slices, m the tile's weight rows: its
outputs, or gates and ups in turn.
"""

import torch
import triton
from torch import Tensor

from omni_ar.kernels.linear.settings import TiledSettings
from omni_ar.kernels.linear.tiled_kernel import add_parts, some_rows
from omni_ar.kernels.overlap import overlaps

# Rows of the left operand, and columns of the right one, of one matrix instruction.
_LEFT, _RIGHT = 16, 8
# Outputs whose parts one program adds up.
_ADDED = 512


def linear(x_RD: Tensor, weight_ND: Tensor, bias_N: Tensor | None, settings: TiledSettings) -> Tensor:
    part_PRN = linear_parts(x_RD, weight_ND, settings, bias_N)
    if settings.splits == 1:
        return part_PRN[0]
    parts, rows, outputs = part_PRN.shape
    y_RN, overlap = x_RD.new_empty(rows, outputs), overlaps(x_RD)
    add_parts[(rows, triton.cdiv(outputs, _ADDED))](
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


def linear_parts(x_RD: Tensor, weight_ND: Tensor, settings: TiledSettings, bias_N: Tensor | None = None) -> Tensor:
    """Returns `[P, R, N]`: the part of each split, in fp32 without the bias; without splits the result, in the dtype of
    the rows."""
    part_PRN, _ = _launch(x_RD, None, None, 0.0, weight_ND, bias_N, False, settings, settings.splits)
    return part_PRN


def gated_linear(x_RD: Tensor, weight_ND: Tensor, bias_N: Tensor | None, settings: TiledSettings) -> Tensor:
    y_1RN, _ = _launch(x_RD, None, None, 0.0, weight_ND, bias_N, True, settings)
    return y_1RN[0]


def norm_linear(
    x_RD: Tensor,
    delta_RD: Tensor | None,
    norm_D: Tensor,
    eps: float,
    weight_ND: Tensor,
    bias_N: Tensor | None,
    gated: bool,
    settings: TiledSettings,
) -> tuple[Tensor, Tensor]:
    """Overflows for fp16 activations above 65504 divided by the largest norm weight: the norm scales after the
    product."""
    y_1RN, sum_RD = _launch(x_RD, delta_RD, norm_D, eps, weight_ND, bias_N, gated, settings)
    return y_1RN[0], sum_RD


def _launch(
    x_RD: Tensor,
    delta_RD: Tensor | None,
    norm_D: Tensor | None,
    eps: float,
    weight_ND: Tensor,
    bias_N: Tensor | None,
    gated: bool,
    settings: TiledSettings,
    splits: int = 1,
) -> tuple[Tensor, Tensor]:
    rows, width = x_RD.shape
    outputs = weight_ND.shape[0] // (2 if gated else 1)
    part_PRN = x_RD.new_empty(splits, rows, outputs, dtype=torch.float32 if splits > 1 else x_RD.dtype)
    sum_RD = x_RD if delta_RD is None else torch.empty_like(x_RD, memory_format=torch.contiguous_format)
    delta = x_RD if delta_RD is None else delta_RD
    tile_n, overlap = settings.tile_n, overlaps(x_RD)
    fetched = tile_n * width * weight_ND.element_size() if overlap and settings.fetch else 0
    some_rows[(triton.cdiv(outputs, tile_n), splits)](
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
        ROWS=max(triton.next_power_of_2(rows), _LEFT if settings.rows_left else _RIGHT),
        NORM=norm_D is not None,
        ADD=delta_RD is not None,
        GATED=gated,
        BIAS=bias_N is not None and splits == 1,
        ROWS_LEFT=settings.rows_left,
        SLICES=settings.slices,
        PREFETCH_BYTES=fetched if fetched % 16 == 0 else 0,
        HELD=settings.held,
        OVERLAP=overlap,
        EARLY=settings.early,
        TILE_N=tile_n,
        TILE_D=settings.tile_d,
        num_warps=settings.num_warps,
        num_stages=settings.num_stages,
        launch_pdl=overlap,
    )
    return part_PRN, sum_RD
