"""A narrow vocabulary: one program holds a row."""

import triton
import triton.language as tl

from omni_ar.kernels.sampling.constants import CODES, RANDOM
from omni_ar.kernels.sampling.noise import draw_of
from omni_ar.kernels.sampling.order import NOTHING, id_of, rank_of
from omni_ar.kernels.sampling.penalties import penalized, sanitized
from omni_ar.kernels.sampling.select import code_selection_of, draw_from_values, selection_of


# Addresses and strides vary from step to step, and with them the alignment; they must not cause a compilation.
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
    scratch_x_ptr,
    scratch_ids_ptr,
    out_ptr,
    out_stride,
    drafts_ptr,
    use,
    vocab,
    BY_ROW: tl.constexpr,
    BLOCK: tl.constexpr,
    FEW: tl.constexpr,
    DRAFTS: tl.constexpr,
):
    """One program per position of a row of the batch, of BLOCK ids at most. parameters: as `Pointers`. drafts: `[N, DRAFTS]`; each
    row has a position before and after each of them.

    work: fp32 `[R, vocab]`, for penalties that name ids. scratch_x, scratch_ids: fp32 and int32 `[R, FEW]`.
    """
    index = tl.program_id(0).to(tl.int64)
    batch_row, before = index // (1 + DRAFTS), index % (1 + DRAFTS)
    row = tl.load(rows_ptr + batch_row)
    needs = tl.load(parameters.needs + row).to(tl.int32)
    position = tl.load(position_ptr + (row if BY_ROW else batch_row) * position_stride) + before
    ids = tl.arange(0, BLOCK)
    x = sanitized(
        tl.load(logits_ptr + index * logits_stride + ids, mask=ids < vocab, other=float("-inf")).to(tl.float32)
    )
    work_row_ptr, row_drafts_ptr = work_ptr + index * vocab, drafts_ptr + row * DRAFTS
    x = penalized(
        x, 0, row, needs, position, work_row_ptr, parameters, vocab, row_drafts_ptr, before, BLOCK, DRAFTS
    )  # fmt: skip
    best = tl.full([], NOTHING, tl.int64)
    if (needs & RANDOM) != 0:
        x = tl.div_rn(x, tl.load(parameters.temperature + row))
        selection = selection_of(parameters, row, needs, vocab)
        draw = draw_of(parameters, row, position, use)
        best = draw_from_values(x, ids, selection, draw, scratch_x_ptr, scratch_ids_ptr, FEW)
    else:
        best = tl.max(rank_of(x, ids))
    tl.store(out_ptr + index * out_stride, id_of(best))


@triton.jit(do_not_specialize=["use"], do_not_specialize_on_alignment=["rows_ptr", "position_ptr"])
def draw_row(
    logits_ptr,
    logits_stride,
    rows_ptr,
    position_ptr,
    parameters,
    scratch_x_ptr,
    scratch_ids_ptr,
    out_ptr,
    use,
    vocab,
    BLOCK: tl.constexpr,
    FEW: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A code of a frame after the first. parameters: as `CodePointers`. scratch_x, scratch_ids: as in `sample_row`."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    index = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + index)
    position = tl.load(position_ptr + index)
    ids = tl.arange(0, BLOCK)
    x = tl.load(logits_ptr + index * logits_stride + ids, mask=ids < vocab, other=float("-inf"))
    # All loads of a row are under way together, whether or not it needs them.
    needs = (tl.load(parameters.needs + row) >> CODES).to(tl.int32)
    temperature = tl.load(parameters.temperature + row)
    selection = code_selection_of(parameters, row, needs, vocab)
    draw = draw_of(parameters, row, position, use)
    x = sanitized(x.to(tl.float32))
    best = tl.full([], NOTHING, tl.int64)
    if (needs & RANDOM) != 0:
        x = tl.div_rn(x, temperature)
        best = draw_from_values(x, ids, selection, draw, scratch_x_ptr, scratch_ids_ptr, FEW)
    else:
        best = tl.max(rank_of(x, ids))
    # The code is an index into a table next, so a row without a possible code gets code 0.
    tl.store(out_ptr + index, tl.maximum(id_of(best), 0))
