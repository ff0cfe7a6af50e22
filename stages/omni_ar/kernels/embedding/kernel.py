"""Sums of embeddings in one launch. Shape legend: see the package; besides, d columns of a program."""

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from omni_ar.kernels.overlap import overlap_options, overlaps

_COLUMNS = 1024
_WARPS = 4


def summed_embeddings(ids_TG: Tensor, tables: Sequence[Tensor], first_TD: Tensor | None) -> Tensor:
    (tokens, groups), width = ids_TG.shape, tables[0].shape[1]
    if groups != len(tables):
        raise ValueError(f"{groups} ids of each token for {len(tables)} tables")
    y_TD = tables[0].new_empty(tokens, width)
    first = tables[0] if first_TD is None else first_TD
    block = min(triton.next_power_of_2(width), _COLUMNS)
    _summed_embeddings[(tokens, triton.cdiv(width, block))](
        ids_TG,
        tuple(tables),
        first,
        y_TD,
        ids_TG.stride(0),
        ids_TG.stride(1),
        first.stride(0),
        WIDTH=width,
        FIRST=first_TD is not None,
        BLOCK_D=block,
        num_warps=_WARPS,
        **overlap_options(overlaps(ids_TG)),
    )
    return y_TD


@triton.jit(do_not_specialize=["ids_stride", "group_stride"], do_not_specialize_on_alignment=["ids_ptr"])
def _summed_embeddings(
    ids_ptr,
    tables,
    first_ptr,
    y_ptr,
    ids_stride,
    group_stride,
    first_stride,
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    BLOCK_D: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    column_d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    inside_d = column_d < WIDTH
    total_d = tl.zeros([BLOCK_D], tl.float32)
    if FIRST:
        total_d = tl.load(first_ptr + token * first_stride + column_d, mask=inside_d, other=0.0).to(tl.float32)
    for group in tl.static_range(len(tables)):
        row = tl.load(ids_ptr + token * ids_stride + group * group_stride)
        total_d += tl.load(tables[group] + row * WIDTH + column_d, mask=inside_d, other=0.0).to(tl.float32)
    tl.store(y_ptr + token * WIDTH + column_d, total_d.to(y_ptr.dtype.element_ty), mask=inside_d)
