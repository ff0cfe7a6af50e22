"""A narrow vocabulary: one program holds a row, and does all of it."""

import triton
import triton.language as tl

from omni_ar.kernels.sampling.bits import CODES, RANDOM, TOP_K, TOP_P
from omni_ar.kernels.sampling.choose import choose
from omni_ar.kernels.sampling.noise import draw_of
from omni_ar.kernels.sampling.order import NOTHING, id_of, rank_of
from omni_ar.kernels.sampling.parameters import Spare, Wanted
from omni_ar.kernels.sampling.rules import meant, ruled


# Where rows come from changes from step to step, and with it their alignment: no reason to compile again.
@triton.jit(
    do_not_specialize=["use", "position_stride", "out_stride"],
    do_not_specialize_on_alignment=["rows_ptr", "position_ptr", "out_ptr"],
)
def sample_row(
    logits_ptr,
    logits_stride,
    rows_ptr,
    position_ptr,
    position_stride,
    parameters,
    work_ptr,
    spare_x_ptr,
    spare_ids_ptr,
    out_ptr,
    out_stride,
    use,
    vocab,
    BY_ROW: tl.constexpr,
    BLOCK: tl.constexpr,
    FEW: tl.constexpr,
):
    """One program per row of the batch, of BLOCK ids at most. parameters: as `Parameters`.

    work: fp32 `[R, vocab]`, for rules that name ids. spare_x, spare_ids: fp32 and int32 `[R, FEW]`, for values that are compared
    each with each.
    """
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + place)
    needs = tl.load(parameters.needs + row).to(tl.int32)
    position = tl.load(position_ptr + (row if BY_ROW else place) * position_stride)
    ids = tl.arange(0, BLOCK)
    x = meant(tl.load(logits_ptr + place * logits_stride + ids, mask=ids < vocab, other=float("-inf")).to(tl.float32))
    x = ruled(x, 0, row, needs, position, work_ptr + place * vocab, parameters, vocab, BLOCK)
    best = tl.full([], NOTHING, tl.int64)
    if (needs & RANDOM) != 0:
        x = tl.div_rn(x, tl.load(parameters.temperature + row))
        k = tl.minimum(tl.load(parameters.top_k + row), vocab).to(tl.int32)
        tail = (1.0 - tl.load(parameters.top_p + row)).to(tl.float32)
        min_p = tl.load(parameters.min_p + row)
        best = _drawn(
            x,
            ids,
            Wanted(needs, k, tail, min_p),
            draw_of(parameters, row, position, use),
            spare_x_ptr,
            spare_ids_ptr,
            FEW,
        )
    else:
        best = tl.max(rank_of(x, ids))
    tl.store(out_ptr + place * out_stride, id_of(best))


@triton.jit(do_not_specialize=["use"], do_not_specialize_on_alignment=["rows_ptr", "position_ptr"])
def draw_row(
    logits_ptr,
    logits_stride,
    rows_ptr,
    position_ptr,
    parameters,
    spare_x_ptr,
    spare_ids_ptr,
    out_ptr,
    use,
    vocab,
    BLOCK: tl.constexpr,
    FEW: tl.constexpr,
):
    """A code of a frame after the first. parameters: as `CodeParameters`. Spare ones: as in `sample_row`."""
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + place)
    ids = tl.arange(0, BLOCK)
    x = meant(tl.load(logits_ptr + place * logits_stride + ids, mask=ids < vocab, other=float("-inf")).to(tl.float32))
    best = tl.full([], NOTHING, tl.int64)
    needs = (tl.load(parameters.needs + row) >> CODES).to(tl.int32)
    if (needs & RANDOM) != 0:
        x = tl.div_rn(x, tl.load(parameters.temperature + row))
        k = tl.minimum(tl.load(parameters.top_k + row), vocab).to(tl.int32)
        tail = (1.0 - tl.load(parameters.top_p + row)).to(tl.float32)
        draw = draw_of(parameters, row, tl.load(position_ptr + place), use)
        best = _drawn(x, ids, Wanted(needs & (TOP_K | TOP_P), k, tail, 0.0), draw, spare_x_ptr, spare_ids_ptr, FEW)
    else:
        best = tl.max(rank_of(x, ids))
    # A code is looked up in a table next: where none is possible, any does.
    tl.store(out_ptr + place, tl.maximum(id_of(best), 0))


@triton.jit
def _drawn(x, ids, wanted, draw, spare_x_ptr, spare_ids_ptr, FEW: tl.constexpr):
    most = tl.max(x)
    most = tl.where(most == float("-inf"), 0.0, most)
    first = tl.program_id(0).to(tl.int64) * FEW
    return choose(x, ids, most, 0.0, wanted, draw, Spare(spare_x_ptr + first, spare_ids_ptr + first), FEW)
