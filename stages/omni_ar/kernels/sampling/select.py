"""Selection of the ids of a row that top-n-sigma, top-k, top-p and min-p keep, and the draw: the largest sum of value
and noise.

Top-p cuts by value: it keeps all values equal to the last one it keeps, where a sort would drop some.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from omni_ar.kernels.sampling.noise import noise_of, noise_of_all
from omni_ar.kernels.sampling.order import LOWEST, NOTHING, key_of, rank_of
from omni_ar.kernels.sampling.state import Need
from omni_ar.kernels.sampling.threshold import between, kth_largest, nucleus

TOP_K = tl.constexpr(Need.TOP_K)
TOP_P = tl.constexpr(Need.TOP_P)
MIN_P = tl.constexpr(Need.MIN_P)
TOP_N_SIGMA = tl.constexpr(Need.TOP_N_SIGMA)

_ABOVE_ALL = tl.constexpr(0x7FFFFFFF)


class Selection(NamedTuple):
    """Selection parameters of one row. tail: the probability that top-p may leave out."""

    needs: Tensor
    k: Tensor
    tail: Tensor
    min_p: Tensor | float
    top_n_sigma: Tensor | float


class Scratch(NamedTuple):
    """Pointers to scratch memory for values and their ids, fp32 and int32."""

    x: Tensor
    ids: Tensor


@triton.jit
def selection_of(parameters, row, needs, vocab):
    """Returns the selection of a row. parameters: pointers as in `Pointers`."""
    k = tl.minimum(tl.load(parameters.top_k + row), vocab).to(tl.int32)
    tail = (1.0 - tl.load(parameters.top_p + row)).to(tl.float32)
    return Selection(needs, k, tail, tl.load(parameters.min_p + row), tl.load(parameters.top_n_sigma + row))


@triton.jit
def code_selection_of(parameters, row, needs, vocab):
    """Returns the selection of a row's codes. parameters: pointers as in `CodePointers`."""
    k = tl.minimum(tl.load(parameters.top_k + row), vocab).to(tl.int32)
    tail = (1.0 - tl.load(parameters.top_p + row)).to(tl.float32)
    return Selection(needs & (TOP_K | TOP_P), k, tail, 0.0, 0.0)


@triton.jit
def draw_from_values(x, ids, selection, draw, scratch_x_ptr, scratch_ids_ptr, FEW: tl.constexpr):
    """The rank of the id that is drawn from a row that one program holds. scratch: memory for FEW values and ids of each
    row."""
    most = tl.max(x)
    most = tl.where(most == float("-inf"), 0.0, most)
    floor = tl.full([], LOWEST + 1, tl.int32)
    if (selection.needs & TOP_N_SIGMA) != 0:
        possible = x > float("-inf")
        count = tl.maximum(tl.sum(possible.to(tl.int32)), 1)
        apart = tl.where(possible, x - tl.sum(tl.where(possible, x, 0.0)) / count, 0.0)
        scale = tl.maximum(tl.max(tl.abs(apart)), 1.0)
        floor = _sigma_floor(most, scale * tl.sqrt(tl.sum((apart / scale) * (apart / scale)) / count), selection)
    first = tl.program_id(0).to(tl.int64) * FEW
    return _choose(
        x, ids, most, floor, 0.0, selection, draw, Scratch(scratch_x_ptr + first, scratch_ids_ptr + first), FEW
    )


@triton.jit
def draw_from_tiles(
    work_ptr,
    tiles_ptr,
    weight_ptr,
    chosen_ptr,
    selection,
    draw,
    scratch,
    vocab,
    blocks,
    TILE: tl.constexpr,
    PER_BLOCK: tl.constexpr,
    PADDED_BLOCKS: tl.constexpr,
    PADDED_TILES: tl.constexpr,
    NUCLEUS: tl.constexpr,
    CAPACITY: tl.constexpr,
    FEW: tl.constexpr,
):
    """The rank of the id that is drawn from a row in memory: from the gathered values if they suffice, else by passes
    over the row. All pointers are to the row's own data."""
    tile = tl.arange(0, PADDED_TILES)
    largest = tl.load(tiles_ptr + tile, mask=tile < blocks * PER_BLOCK, other=float("-inf"))
    most = tl.max(largest)
    most = tl.where(most == float("-inf"), 0.0, most)
    floor = tl.full([], LOWEST + 1, tl.int32)
    if (selection.needs & TOP_N_SIGMA) != 0:
        floor = _sigma_floor(most, _deviation_of_row(work_ptr, most, vocab, 2 * CAPACITY), selection)
    least = _least(key_of(largest), most, floor, selection, NUCLEUS)
    found = _gather(key_of(largest) >= least, least, work_ptr, chosen_ptr, scratch, vocab, TILE, PADDED_TILES, CAPACITY)
    tl.debug_barrier()
    found_at = tl.arange(0, CAPACITY)
    x = tl.load(scratch.x + found_at, mask=found_at < found, other=float("-inf"))
    fits = found <= CAPACITY
    outside = tl.full([], 0.0, tl.float32)
    if (selection.needs & (TOP_P | TOP_K | TOP_N_SIGMA)) == TOP_P:
        total = _total(weight_ptr, most, tiles_ptr, blocks, PER_BLOCK, PADDED_BLOCKS)
        outside = tl.maximum(total - tl.sum(tl.exp(x - most)), 0.0)
        fits = fits & (outside <= selection.tail * total)
    best = tl.full([], NOTHING, tl.int64)
    if fits:
        ids = tl.load(scratch.ids + found_at, mask=found_at < found, other=0)
        best = _choose(
            x, ids, most, floor, outside, selection, draw, Scratch(scratch.x + CAPACITY, scratch.ids + CAPACITY), FEW
        )
    else:
        best = _draw_from_row(work_ptr, most, floor, selection, draw, vocab, 2 * CAPACITY)
    return best


@triton.jit
def _least(largest, most, floor, selection, NUCLEUS: tl.constexpr):
    """A key to gather values from, at or above `floor`. largest: keys of the tiles' maxima."""
    if ((selection.needs & TOP_K) != 0) | ((selection.needs & (TOP_P | TOP_N_SIGMA)) == TOP_P):
        # k tiles have a maximum at or above the k-th largest maximum, so at least k values are. The number of values
        # in top-p is known only from their weights.
        count = tl.where((selection.needs & TOP_K) != 0, selection.k, NUCLEUS)
        if tl.sum((largest >= floor).to(tl.int32)) > count:
            floor = kth_largest(largest, most, count, count)
    elif (selection.needs & (TOP_P | MIN_P)) == MIN_P:
        floor = tl.maximum(floor, key_of(most + tl.log(selection.min_p) - 0.01))
    return floor


@triton.jit
def _sigma_floor(most, deviation, selection):
    """The least key within `top_n_sigma` standard deviations of the largest value; the least key of all if the model
    overflowed."""
    threshold = most - selection.top_n_sigma * deviation
    return tl.where(threshold > float("-inf"), key_of(threshold), LOWEST + 1)


@triton.jit
def _deviation_of_row(x_ptr, most, vocab, AT_ONCE: tl.constexpr):
    """The population standard deviation of a row's possible values, in two passes over it."""
    counts = tl.zeros([AT_ONCE], tl.int32)
    totals = tl.zeros([AT_ONCE], tl.float32)
    least = tl.full([AT_ONCE], 0.0, tl.float32) + most
    for start in range(0, vocab, AT_ONCE):
        x = tl.load(
            x_ptr + start + tl.arange(0, AT_ONCE), mask=start + tl.arange(0, AT_ONCE) < vocab, other=float("-inf")
        )
        counts += (x > float("-inf")).to(tl.int32)
        totals += tl.where(x > float("-inf"), x, 0.0)
        least = tl.minimum(least, tl.where(x > float("-inf"), x, most))
    count = tl.maximum(tl.sum(counts), 1)
    mean = tl.sum(totals) / count
    # Squares of logits as large as `MAX_LOGIT` would overflow.
    scale = tl.maximum(tl.maximum(most - mean, mean - tl.min(least)), 1.0)
    squares = tl.zeros([AT_ONCE], tl.float32)
    for start in range(0, vocab, AT_ONCE):
        x = tl.load(
            x_ptr + start + tl.arange(0, AT_ONCE), mask=start + tl.arange(0, AT_ONCE) < vocab, other=float("-inf")
        )
        apart = tl.where(x > float("-inf"), x - mean, 0.0) / scale
        squares += apart * apart
    return scale * tl.sqrt(tl.sum(squares) / count)


@triton.jit
def _gather(
    is_chosen,
    floor,
    x_ptr,
    chosen_ptr,
    scratch,
    vocab,
    TILE: tl.constexpr,
    PADDED_TILES: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    """Gathers values from `floor` on and their ids, in order, up to CAPACITY. Returns their number, which exceeds CAPACITY if
    some did not fit."""
    order = tl.cumsum(is_chosen.to(tl.int32), 0) - 1
    tl.store(chosen_ptr + order, tl.arange(0, PADDED_TILES), mask=is_chosen)
    number = tl.sum(is_chosen.to(tl.int32)) * TILE
    tl.debug_barrier()
    found = tl.full([], 0, tl.int32)
    first = tl.full([], 0, tl.int32)
    while (first < number) & (found <= CAPACITY):
        at = first + tl.arange(0, CAPACITY)
        ids = tl.load(chosen_ptr + at // TILE, mask=at < number, other=0) * TILE + at % TILE
        x = tl.load(x_ptr + ids, mask=(at < number) & (ids < vocab), other=float("-inf"))
        taken = key_of(x) >= floor
        to = found + tl.cumsum(taken.to(tl.int32), 0) - 1
        tl.store(scratch.x + to, x, mask=taken & (to < CAPACITY))
        tl.store(scratch.ids + to, ids, mask=taken & (to < CAPACITY))
        found += tl.sum(taken.to(tl.int32))
        first += CAPACITY
    return found


@triton.jit
def _total(weight_ptr, most, tiles_ptr, blocks, PER_BLOCK: tl.constexpr, PADDED_BLOCKS: tl.constexpr):
    """Total weight of a row. weight: the weight of each block, relative to the block's maximum."""
    block = tl.arange(0, PADDED_BLOCKS)
    weight = tl.load(weight_ptr + block, mask=block < blocks, other=0.0)
    largest = tl.full(weight.shape, float("-inf"), tl.float32)
    for tile in range(PER_BLOCK):
        at = tiles_ptr + block * PER_BLOCK + tile
        largest = tl.maximum(largest, tl.load(at, mask=block < blocks, other=float("-inf")))
    # `where` makes every thread round the product before the addition: threads branch on the sum and must agree.
    return tl.sum(tl.where(block < blocks, weight * tl.exp(largest - most), 0.0))


@triton.jit
def _choose(x, ids, most, floor, outside, selection, draw, scratch, FEW: tl.constexpr):
    """The rank of the id that is drawn from `x`, fp32, with minus infinity as padding. most: the largest value, finite.
    floor: the least key that may be kept.

    outside: total weight of the row's other values, none of which top-k keeps or top-p needs; a value's weight is
    exp(value - most). scratch: memory for FEW values.
    """
    HALF: tl.constexpr = FEW // 2
    key = key_of(x)
    threshold = floor
    if (selection.needs & TOP_K) != 0:  # noqa: SIM102 - else values are not counted
        if tl.sum((key >= threshold).to(tl.int32)) > selection.k:
            # Among few values, pairs find the k largest.
            threshold = kth_largest(key, most, selection.k, tl.maximum(selection.k, HALF))
    keep = key >= threshold
    kept = tl.sum(keep.to(tl.int32))
    best = tl.full([], NOTHING, tl.int64)
    if kept <= FEW:
        index = tl.cumsum(keep.to(tl.int32), 0) - 1
        tl.store(scratch.x + index, x, mask=keep)
        tl.store(scratch.ids + index, ids, mask=keep)
        tl.debug_barrier()
        if kept <= HALF:
            best = _of_few(kept, most, outside, selection, draw, scratch, HALF)
        else:
            best = _of_few(kept, most, outside, selection, draw, scratch, FEW)
    else:
        weight = tl.where(keep, tl.exp(x - most), 0.0)
        if (selection.needs & TOP_P) != 0:
            allowed = selection.tail * (tl.sum(weight) + outside)
            keep = key >= nucleus(key, weight, threshold, most, outside, allowed)
        if (selection.needs & MIN_P) != 0:
            keep = keep & (weight >= selection.min_p)
        noisy = tl.where(keep, x + noise_of(ids, draw), float("-inf"))
        best = tl.max(rank_of(noisy, ids))
    return best


@triton.jit
def _of_few(kept, most, outside, selection, draw, scratch, FEW: tl.constexpr):
    """`_choose` for `kept` values in scratch memory, few enough to compare all pairs."""
    at = tl.arange(0, FEW)
    x = tl.load(scratch.x + at, mask=at < kept, other=float("-inf"))
    ids = tl.load(scratch.ids + at, mask=at < kept, other=0)
    weight = tl.exp(x - most)
    if (selection.needs & TOP_K) != 0:
        larger = tl.sum((x[None, :] > x[:, None]).to(tl.int32), axis=1)
        weight = tl.where(larger < selection.k, weight, 0.0)
        x = tl.where(larger < selection.k, x, float("-inf"))
    keep = weight >= 0
    if (selection.needs & TOP_P) != 0:
        allowed = selection.tail * (tl.sum(weight) + outside)
        upto = outside + tl.sum(tl.where(x[None, :] <= x[:, None], weight[None, :], 0.0), axis=1)
        keep = (upto > allowed) | (x == most)
    if (selection.needs & MIN_P) != 0:
        keep = keep & (weight >= selection.min_p)
    noisy = tl.where(keep, x + noise_of(ids, draw), float("-inf"))
    return tl.max(rank_of(noisy, ids))


@triton.jit
def _draw_from_row(x_ptr, most, floor, selection, draw, vocab, AT_ONCE: tl.constexpr):
    """`_choose` for a row of any width in memory, by passes over it."""
    threshold = floor
    if (selection.needs & TOP_K) != 0:
        threshold = _kth_largest(x_ptr, most, threshold, selection.k, vocab, AT_ONCE)
    if (selection.needs & TOP_P) != 0:
        threshold = _nucleus(x_ptr, most, threshold, selection.tail, vocab, AT_ONCE)
    best = tl.full([], NOTHING, tl.int64)
    for start in range(0, vocab, AT_ONCE):
        ids = start + tl.arange(0, AT_ONCE)
        x = tl.load(x_ptr + ids, mask=ids < vocab, other=float("-inf"))
        keep = key_of(x) >= threshold
        if (selection.needs & MIN_P) != 0:
            keep = keep & (tl.exp(x - most) >= selection.min_p)
        noisy = tl.where(keep, x + noise_of_all(start, draw, AT_ONCE), float("-inf"))
        best = tl.maximum(best, tl.max(rank_of(noisy, ids)))
    return best


@triton.jit
def _measured(x_ptr, most, low, middle, vocab, AT_ONCE: tl.constexpr):
    """The number of values from `middle` on; the weight of those from `low` to below `middle`; the first key from
    `middle` on; the first key after the last one below `middle`."""
    counts = tl.zeros([AT_ONCE], tl.int32)
    weights = tl.zeros([AT_ONCE], tl.float32)
    above = tl.full([AT_ONCE], _ABOVE_ALL, tl.int32)
    below = tl.full([AT_ONCE], LOWEST, tl.int32)
    for start in range(0, vocab, AT_ONCE):
        ids = start + tl.arange(0, AT_ONCE)
        x = tl.load(x_ptr + ids, mask=ids < vocab, other=float("-inf"))
        key = key_of(x)
        counts += (key >= middle).to(tl.int32)
        weights += tl.where((key >= low) & (key < middle), tl.exp(x - most), 0.0)
        above = tl.minimum(above, tl.where(key >= middle, key, _ABOVE_ALL))
        below = tl.maximum(below, tl.where(key < middle, key, LOWEST))
    return tl.sum(counts), tl.sum(weights), tl.min(above), tl.max(below) + 1


@triton.jit
def _kth_largest(x_ptr, most, low, k, vocab, AT_ONCE: tl.constexpr):
    floor = low
    high = key_of(most) + 1
    step = tl.full([], 0, tl.int32)
    possible, _weight, _above, _below = _measured(x_ptr, most, low, low, vocab, AT_ONCE)
    if possible > k:
        while low + 1 < high:
            middle = between(low, high, step, floor)
            count, _weight, above, below = _measured(x_ptr, most, middle, middle, vocab, AT_ONCE)
            low = tl.where(count >= k, above, low)
            high = tl.where(count == k, low + 1, tl.where(count >= k, high, below))
            step += 1
    return low


@triton.jit
def _nucleus(x_ptr, most, low, tail, vocab, AT_ONCE: tl.constexpr):
    floor = low
    high = key_of(most) + 1
    step = tl.full([], 0, tl.int32)
    _count, total, _above, _below = _measured(x_ptr, most, low, high, vocab, AT_ONCE)
    # Lower bound of the weight that is left out.
    left_out = tl.full([], 0.0, tl.float32)
    while low + 1 < high:
        middle = between(low, high, step, floor)
        _count, weight, above, below = _measured(x_ptr, most, low, middle, vocab, AT_ONCE)
        fits = left_out + weight <= tail * total
        left_out = tl.where(fits, left_out + weight, left_out)
        low = tl.where(fits, above, low)
        high = tl.where(fits, high, below)
        step += 1
    return low
