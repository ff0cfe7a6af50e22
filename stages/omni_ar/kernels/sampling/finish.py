"""Part two for a wide vocabulary: one program per row gathers what may be kept, and draws; or takes the blocks' best."""

import triton
import triton.language as tl

from omni_ar.kernels.sampling.bits import RANDOM, SELECTS, TOP_K, TOP_P
from omni_ar.kernels.sampling.choose import choose
from omni_ar.kernels.sampling.noise import draw_of
from omni_ar.kernels.sampling.order import LOWEST, NOTHING, id_of, key_of
from omni_ar.kernels.sampling.parameters import Spare, Wanted
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
    parameters,
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
    """parameters: as `Parameters`. chosen: room for a row's segments. Both spare ones: for ROOM values of a row, and FEW."""
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + place)
    needs = tl.load(parameters.needs + row).to(tl.int32)
    best = tl.full([], NOTHING, tl.int64)
    if ((needs & RANDOM) != 0) & ((needs & SELECTS) != 0):
        position = tl.load(position_ptr + (row if BY_ROW else place) * position_stride)
        draw = draw_of(parameters, row, position, use)
        k = tl.minimum(tl.load(parameters.top_k + row), vocab).to(tl.int32)
        tail = (1.0 - tl.load(parameters.top_p + row)).to(tl.float32)
        wanted = Wanted(needs, k, tail, tl.load(parameters.min_p + row))
        first = place * (ROOM + FEW)
        spare = Spare(spare_x_ptr + first, spare_ids_ptr + first)
        segments = place * (blocks * PER_BLOCK)
        best = _drawn(
            work_ptr + place * vocab, segments_ptr + segments, weight_ptr + place * blocks, chosen_ptr + segments,
            wanted, draw, spare, vocab, blocks, SEGMENT, PER_BLOCK, PADDED_BLOCKS, PADDED_SEGMENTS, NUCLEUS, ROOM, FEW,
        )  # fmt: skip
    else:
        at = tl.arange(0, PADDED_BLOCKS)
        best = tl.max(tl.load(best_ptr + place * blocks + at, mask=at < blocks, other=NOTHING))
    tl.store(out_ptr + place * out_stride, id_of(best))


@triton.jit
def _drawn(
    work_ptr,
    segments_ptr,
    weight_ptr,
    chosen_ptr,
    wanted,
    draw,
    spare,
    vocab,
    blocks,
    SEGMENT: tl.constexpr,
    PER_BLOCK: tl.constexpr,
    PADDED_BLOCKS: tl.constexpr,
    PADDED_SEGMENTS: tl.constexpr,
    NUCLEUS: tl.constexpr,
    ROOM: tl.constexpr,
    FEW: tl.constexpr,
):
    """The rank of what is drawn: from the values that are gathered if they are enough, else from the row. Pointers: a row's."""
    segment = tl.arange(0, PADDED_SEGMENTS)
    largest = tl.load(segments_ptr + segment, mask=segment < blocks * PER_BLOCK, other=float("-inf"))
    most = tl.max(largest)
    most = tl.where(most == float("-inf"), 0.0, most)
    floor = _floor(key_of(largest), most, wanted, NUCLEUS)
    found = _gather(key_of(largest) >= floor, floor, work_ptr, chosen_ptr, spare, vocab, SEGMENT, PADDED_SEGMENTS, ROOM)
    tl.debug_barrier()
    found_at = tl.arange(0, ROOM)
    x = tl.load(spare.x + found_at, mask=found_at < found, other=float("-inf"))
    fits = found <= ROOM
    outside = tl.full([], 0.0, tl.float32)
    if ((wanted.needs & TOP_P) != 0) & ((wanted.needs & TOP_K) == 0):
        total = _total(weight_ptr, most, segments_ptr, blocks, PER_BLOCK, PADDED_BLOCKS)
        outside = tl.maximum(total - tl.sum(tl.exp(x - most)), 0.0)
        fits = fits & (outside <= wanted.tail * total)
    best = tl.full([], NOTHING, tl.int64)
    if fits:
        ids = tl.load(spare.ids + found_at, mask=found_at < found, other=0)
        best = choose(x, ids, most, outside, wanted, draw, Spare(spare.x + ROOM, spare.ids + ROOM), FEW)
    else:
        best = draw_from_row(work_ptr, most, wanted, draw, vocab, 2 * ROOM)
    return best


@triton.jit
def _floor(largest, most, wanted, NUCLEUS: tl.constexpr):
    """A key that all of the row's values reach that are kept. largest: keys of the segments' maxima."""
    floor = tl.full([], LOWEST + 1, tl.int32)
    if (wanted.needs & (TOP_K | TOP_P)) != 0:
        # As many segments have a maximum from the k-th largest maximum on, so that at least k values are from there on. How many
        # make top-p is not known before they are weighed.
        count = tl.where((wanted.needs & TOP_K) != 0, wanted.k, NUCLEUS)
        if tl.sum((largest >= floor).to(tl.int32)) > count:
            floor = kth_largest(largest, most, count)
    else:
        floor = tl.maximum(floor, key_of(most + tl.log(wanted.min_p) - 0.01))
    return floor


@triton.jit
def _gather(
    is_chosen,
    floor,
    x_ptr,
    chosen_ptr,
    spare,
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
        tl.store(spare.x + to, x, mask=taken & (to < ROOM))
        tl.store(spare.ids + to, ids, mask=taken & (to < ROOM))
        found += tl.sum(taken.to(tl.int32))
        first += ROOM
    return found


@triton.jit
def _total(weight_ptr, most, segments_ptr, blocks, PER_BLOCK: tl.constexpr, PADDED_BLOCKS: tl.constexpr):
    """What all values of a row weigh. weight: what each block's do, taken relative to the block's own maximum."""
    block = tl.arange(0, PADDED_BLOCKS)
    weight = tl.load(weight_ptr + block, mask=block < blocks, other=0.0)
    largest = tl.full(weight.shape, float("-inf"), tl.float32)
    for segment in range(PER_BLOCK):
        at = segments_ptr + block * PER_BLOCK + segment
        largest = tl.maximum(largest, tl.load(at, mask=block < blocks, other=float("-inf")))
    # Chosen, a product is rounded before it is added, for every thread alike: they branch on what comes of the sum.
    return tl.sum(tl.where(block < blocks, weight * tl.exp(largest - most), 0.0))
