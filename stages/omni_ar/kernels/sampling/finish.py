"""Part two for a wide vocabulary: one program per row gathers what may be kept, and draws; or takes the blocks' best."""

import triton
import triton.language as tl

from omni_ar.kernels.sampling.bits import RANDOM, SELECTS, TOP_K, TOP_P
from omni_ar.kernels.sampling.choose import choose
from omni_ar.kernels.sampling.noise import draw_key
from omni_ar.kernels.sampling.order import LOWEST, NOTHING, id_of, key_of
from omni_ar.kernels.sampling.threshold import kth_largest
from omni_ar.kernels.sampling.whole import draw_from_row


@triton.jit(
    do_not_specialize=["use", "position_stride", "out_stride"],
    do_not_specialize_on_alignment=["rows_ptr", "position_ptr", "out_ptr"],
)
def finish(
    rows_ptr,
    position_ptr,
    position_stride,
    needs_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    seed_ptr,
    sample_index_ptr,
    work_ptr,
    segments_ptr,
    best_ptr,
    weight_ptr,
    chosen_ptr,
    spare_x_ptr,
    spare_ids_ptr,
    out_ptr,
    out_stride,
    use,
    vocab,
    blocks,
    BY_ROW: tl.constexpr,
    SEGMENT: tl.constexpr,
    PER_BLOCK: tl.constexpr,
    PADDED_BLOCKS: tl.constexpr,
    PADDED_SEGMENTS: tl.constexpr,
    NUCLEUS: tl.constexpr,
    ROOM: tl.constexpr,
    FEW: tl.constexpr,
):
    """chosen: room for a row's segments. Both spare ones: for ROOM values of a row, and FEW."""
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + place)
    needs = tl.load(needs_ptr + row).to(tl.int32)
    at = tl.arange(0, PADDED_BLOCKS)
    segments = blocks * PER_BLOCK
    best = tl.full([], NOTHING, tl.int64)
    if ((needs & RANDOM) != 0) & ((needs & SELECTS) != 0):
        position = tl.load(position_ptr + (row if BY_ROW else place) * position_stride)
        counter, index, purpose, k0, k1 = draw_key(seed_ptr, sample_index_ptr, row, position, use)
        k = tl.minimum(tl.load(top_k_ptr + row), vocab).to(tl.int32)
        tail = (1.0 - tl.load(top_p_ptr + row)).to(tl.float32)
        min_p = tl.load(min_p_ptr + row)
        work_row_ptr = work_ptr + place * vocab
        spare_x_row_ptr = spare_x_ptr + place * (ROOM + FEW)
        spare_ids_row_ptr = spare_ids_ptr + place * (ROOM + FEW)
        segments_row_ptr = segments_ptr + place * segments
        chosen_row_ptr = chosen_ptr + place * segments

        segment = tl.arange(0, PADDED_SEGMENTS)
        largest = tl.load(segments_row_ptr + segment, mask=segment < segments, other=float("-inf"))
        most = tl.max(largest)
        most = tl.where(most == float("-inf"), 0.0, most)
        floor = _floor(key_of(largest), most, needs, k, min_p, NUCLEUS)
        found = _gather(
            key_of(largest) >= floor,
            floor,
            work_row_ptr,
            chosen_row_ptr,
            spare_x_row_ptr,
            spare_ids_row_ptr,
            vocab,
            SEGMENT,
            PADDED_SEGMENTS,
            ROOM,
        )
        tl.debug_barrier()
        found_at = tl.arange(0, ROOM)
        x = tl.load(spare_x_row_ptr + found_at, mask=found_at < found, other=float("-inf"))
        fits = found <= ROOM
        outside = tl.full([], 0.0, tl.float32)
        if ((needs & TOP_P) != 0) & ((needs & TOP_K) == 0):
            weight = tl.load(weight_ptr + place * blocks + at, mask=at < blocks, other=0.0)
            total = _total(weight, most, at, segments_row_ptr, blocks, PER_BLOCK)
            outside = tl.maximum(total - tl.sum(tl.exp(x - most)), 0.0)
            fits = fits & (outside <= tail * total)
        if fits:
            ids = tl.load(spare_ids_row_ptr + found_at, mask=found_at < found, other=0)
            few_x_ptr, few_ids_ptr = spare_x_row_ptr + ROOM, spare_ids_row_ptr + ROOM
            best = choose(
                x,
                ids,
                most,
                outside,
                needs,
                k,
                tail,
                min_p,
                counter,
                index,
                purpose,
                k0,
                k1,
                few_x_ptr,
                few_ids_ptr,
                FEW,
            )
        else:
            best = draw_from_row(
                work_row_ptr, most, needs, k, tail, min_p, counter, index, purpose, k0, k1, vocab, 2 * ROOM
            )
    else:
        best = tl.max(tl.load(best_ptr + place * blocks + at, mask=at < blocks, other=NOTHING))
    tl.store(out_ptr + place * out_stride, id_of(best))


@triton.jit
def _floor(largest, most, needs, k, min_p, NUCLEUS: tl.constexpr):
    """A key that all of the row's values reach that are kept. largest: keys of the segments' maxima."""
    floor = tl.full([], LOWEST + 1, tl.int32)
    if (needs & (TOP_K | TOP_P)) != 0:
        # As many segments have a maximum from the k-th largest maximum on, so that at least k values are from there on. How many
        # make top-p is not known before they are weighed.
        wanted = tl.where((needs & TOP_K) != 0, k, NUCLEUS)
        if tl.sum((largest >= floor).to(tl.int32)) > wanted:
            floor = kth_largest(largest, most, wanted)
    else:
        floor = tl.maximum(floor, key_of(most + tl.log(min_p) - 0.01))
    return floor


@triton.jit
def _gather(
    is_chosen,
    floor,
    x_ptr,
    chosen_ptr,
    spare_x_ptr,
    spare_ids_ptr,
    vocab,
    SEGMENT: tl.constexpr,
    PADDED_SEGMENTS: tl.constexpr,
    ROOM: tl.constexpr,
):
    """Values from `floor` on and their ids, in order, as many as there is room for; gives their number, more than ROOM if not."""
    order = tl.cumsum(is_chosen.to(tl.int32), 0) - 1
    tl.store(chosen_ptr + order, tl.arange(0, PADDED_SEGMENTS), mask=is_chosen)
    number = tl.sum(is_chosen.to(tl.int32)) * SEGMENT
    tl.debug_barrier()
    found = tl.full([], 0, tl.int32)
    first = tl.full([], 0, tl.int32)
    while (first < number) & (found <= ROOM):
        at = first + tl.arange(0, ROOM)
        ids = tl.load(chosen_ptr + at // SEGMENT, mask=at < number, other=0) * SEGMENT + at % SEGMENT
        x = tl.load(x_ptr + ids, mask=(at < number) & (ids < vocab), other=float("-inf"))
        taken = key_of(x) >= floor
        to = found + tl.cumsum(taken.to(tl.int32), 0) - 1
        tl.store(spare_x_ptr + to, x, mask=taken & (to < ROOM))
        tl.store(spare_ids_ptr + to, ids, mask=taken & (to < ROOM))
        found += tl.sum(taken.to(tl.int32))
        first += ROOM
    return found


@triton.jit
def _total(weight, most, block, segments_ptr, blocks, PER_BLOCK: tl.constexpr):
    """What all values of a row weigh. weight: what each block's do, taken relative to the block's own maximum."""
    largest = tl.full(weight.shape, float("-inf"), tl.float32)
    for segment in range(PER_BLOCK):
        at = segments_ptr + block * PER_BLOCK + segment
        largest = tl.maximum(largest, tl.load(at, mask=block < blocks, other=float("-inf")))
    return tl.sum(weight * tl.exp(largest - most))
