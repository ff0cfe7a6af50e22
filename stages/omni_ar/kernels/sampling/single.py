"""A narrow vocabulary: one program holds a row, and does all of it."""

import triton
import triton.language as tl

from omni_ar.kernels.sampling.bits import RANDOM
from omni_ar.kernels.sampling.choose import choose
from omni_ar.kernels.sampling.noise import draw_key
from omni_ar.kernels.sampling.order import NOTHING, id_of, rank_of
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
    needs_ptr,
    temperature_ptr,
    seed_ptr,
    sample_index_ptr,
    repetition_ptr,
    seen_ptr,
    frequency_ptr,
    presence_ptr,
    counts_ptr,
    bias_ids_ptr,
    biases_ptr,
    forbidden_ptr,
    bad_words_ptr,
    recent_ptr,
    min_tokens_ptr,
    stop_ids_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
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
    """One program per row of the batch, of BLOCK ids at most; whose rows these are, and their parameters: see `kernel._inputs`.

    work: fp32 `[R, vocab]`, for rules that name ids. spare_x, spare_ids: fp32 and int32 `[R, FEW]`, for values that are compared
    each with each.
    """
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + place)
    needs = tl.load(needs_ptr + row).to(tl.int32)
    position = tl.load(position_ptr + (row if BY_ROW else place) * position_stride)
    ids = tl.arange(0, BLOCK)
    x = meant(tl.load(logits_ptr + place * logits_stride + ids, mask=ids < vocab, other=float("-inf")).to(tl.float32))
    x = ruled(
        x,
        0,
        row,
        needs,
        position,
        work_ptr + place * vocab,
        repetition_ptr,
        seen_ptr,
        frequency_ptr,
        presence_ptr,
        counts_ptr,
        bias_ids_ptr,
        biases_ptr,
        forbidden_ptr,
        bad_words_ptr,
        recent_ptr,
        min_tokens_ptr,
        stop_ids_ptr,
        vocab,
        BLOCK,
    )
    best = tl.full([], NOTHING, tl.int64)
    if (needs & RANDOM) != 0:
        x = tl.div_rn(x, tl.load(temperature_ptr + row))
        k = tl.minimum(tl.load(top_k_ptr + row), vocab).to(tl.int32)
        tail = (1.0 - tl.load(top_p_ptr + row)).to(tl.float32)
        min_p = tl.load(min_p_ptr + row)
        best = _drawn(
            x, ids, row, needs, k, tail, min_p, position, use, seed_ptr, sample_index_ptr,
            spare_x_ptr + place * FEW, spare_ids_ptr + place * FEW, FEW,
        )  # fmt: skip
    else:
        best = tl.max(rank_of(x, ids))
    tl.store(out_ptr + place * out_stride, id_of(best))


@triton.jit(do_not_specialize=["use", "k"], do_not_specialize_on_alignment=["rows_ptr", "position_ptr"])
def draw_row(
    logits_ptr,
    logits_stride,
    rows_ptr,
    position_ptr,
    temperature_ptr,
    seed_ptr,
    sample_index_ptr,
    spare_x_ptr,
    spare_ids_ptr,
    out_ptr,
    k,
    tail,
    use,
    vocab,
    NEEDS: tl.constexpr,
    BLOCK: tl.constexpr,
    FEW: tl.constexpr,
):
    """At temperature 1, with the same settings for all rows; greedy rows are so here too. Spare ones: as in `sample_row`."""
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + place)
    ids = tl.arange(0, BLOCK)
    x = meant(tl.load(logits_ptr + place * logits_stride + ids, mask=ids < vocab, other=float("-inf")).to(tl.float32))
    best = tl.full([], NOTHING, tl.int64)
    if tl.load(temperature_ptr + row) != 0:
        needs = tl.full([], NEEDS, tl.int32)
        best = _drawn(
            x, ids, row, needs, k, tail, 0.0, tl.load(position_ptr + place), use, seed_ptr, sample_index_ptr,
            spare_x_ptr + place * FEW, spare_ids_ptr + place * FEW, FEW,
        )  # fmt: skip
    else:
        best = tl.max(rank_of(x, ids))
    # A code is looked up in a table next: where none is possible, any does.
    tl.store(out_ptr + place, tl.maximum(id_of(best), 0))


@triton.jit
def _drawn(
    x,
    ids,
    row,
    needs,
    k,
    tail,
    min_p,
    position,
    use,
    seed_ptr,
    sample_index_ptr,
    spare_x_ptr,
    spare_ids_ptr,
    FEW: tl.constexpr,
):
    counter, index, purpose, k0, k1 = draw_key(seed_ptr, sample_index_ptr, row, position, use)
    most = tl.max(x)
    most = tl.where(most == float("-inf"), 0.0, most)
    return choose(
        x, ids, most, 0.0, needs, k, tail, min_p, counter, index, purpose, k0, k1, spare_x_ptr, spare_ids_ptr, FEW
    )
