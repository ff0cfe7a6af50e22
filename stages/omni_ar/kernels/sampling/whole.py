"""A draw from a row of any width in memory, by passes over it: where no small part of the row is known to hold what is drawn."""

import triton
import triton.language as tl

from omni_ar.kernels.sampling.bits import MIN_P, TOP_K, TOP_P
from omni_ar.kernels.sampling.noise import noise_of_all
from omni_ar.kernels.sampling.order import LOWEST, NOTHING, key_of, rank_of
from omni_ar.kernels.sampling.threshold import between

_ABOVE_ALL = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _measured(x_ptr, most, low, middle, vocab, TILE: tl.constexpr):
    """How many values there are from `middle` on, and what those weigh that are from `low` on and below it; then, of all values,
    the first key from `middle` on, and the first after the last one below it."""
    counts = tl.zeros([TILE], tl.int32)
    weights = tl.zeros([TILE], tl.float32)
    above = tl.full([TILE], _ABOVE_ALL, tl.int32)
    below = tl.full([TILE], LOWEST, tl.int32)
    for start in range(0, vocab, TILE):
        ids = start + tl.arange(0, TILE)
        x = tl.load(x_ptr + ids, mask=ids < vocab, other=float("-inf"))
        key = key_of(x)
        counts += (key >= middle).to(tl.int32)
        weights += tl.where((key >= low) & (key < middle), tl.exp(x - most), 0.0)
        above = tl.minimum(above, tl.where(key >= middle, key, _ABOVE_ALL))
        below = tl.maximum(below, tl.where(key < middle, key, LOWEST))
    return tl.sum(counts), tl.sum(weights), tl.min(above), tl.max(below) + 1


@triton.jit
def draw_from_row(x_ptr, most, wanted, draw, vocab, TILE: tl.constexpr):
    """As `choose`, of all values of a row."""
    threshold = tl.full([], LOWEST + 1, tl.int32)
    if (wanted.needs & TOP_K) != 0:
        threshold = _kth_largest(x_ptr, most, threshold, wanted.k, vocab, TILE)
    if (wanted.needs & TOP_P) != 0:
        threshold = _nucleus(x_ptr, most, threshold, wanted.tail, vocab, TILE)
    best = tl.full([], NOTHING, tl.int64)
    for start in range(0, vocab, TILE):
        ids = start + tl.arange(0, TILE)
        x = tl.load(x_ptr + ids, mask=ids < vocab, other=float("-inf"))
        keep = key_of(x) >= threshold
        if (wanted.needs & MIN_P) != 0:
            keep = keep & (tl.exp(x - most) >= wanted.min_p)
        noisy = tl.where(keep, x + noise_of_all(start, draw, TILE), float("-inf"))
        best = tl.maximum(best, tl.max(rank_of(noisy, ids)))
    return best


@triton.jit
def _kth_largest(x_ptr, most, low, k, vocab, TILE: tl.constexpr):
    high = key_of(most) + 1
    step = tl.full([], 0, tl.int32)
    possible, _weight, _above, _below = _measured(x_ptr, most, low, low, vocab, TILE)
    if possible > k:
        while low + 1 < high:
            middle = between(low, high, step)
            count, _weight, above, below = _measured(x_ptr, most, middle, middle, vocab, TILE)
            low = tl.where(count >= k, above, low)
            high = tl.where(count == k, low + 1, tl.where(count >= k, high, below))
            step += 1
    return low


@triton.jit
def _nucleus(x_ptr, most, low, tail, vocab, TILE: tl.constexpr):
    high = key_of(most) + 1
    step = tl.full([], 0, tl.int32)
    _count, total, _above, _below = _measured(x_ptr, most, low, high, vocab, TILE)
    # What has been found to be left out weighs `left_out` already.
    left_out = tl.full([], 0.0, tl.float32)
    while low + 1 < high:
        middle = between(low, high, step)
        _count, weight, above, below = _measured(x_ptr, most, low, middle, vocab, TILE)
        fits = left_out + weight <= tail * total
        left_out = tl.where(fits, left_out + weight, left_out)
        low = tl.where(fits, above, low)
        high = tl.where(fits, high, below)
        step += 1
    return low
