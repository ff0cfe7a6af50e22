"""A draw from values that one program holds: top-k, top-p and min-p, then the largest with its noise.

What is within top-p is told by value: of equal values at its end all stay, where a sort would drop some.
"""

import triton
import triton.language as tl

from omni_ar.kernels.sampling.bits import MIN_P, TOP_K, TOP_P
from omni_ar.kernels.sampling.noise import noise_of
from omni_ar.kernels.sampling.order import LOWEST, NOTHING, key_of, rank_of
from omni_ar.kernels.sampling.threshold import kth_largest, nucleus


@triton.jit
def choose(x, ids, most, outside, wanted, draw, spare, FEW: tl.constexpr):
    """The rank of what is drawn from `x`, fp32, minus infinity where there is none. most: the largest, finite.

    outside: what values that are not among them weigh, none of which top-k keeps or top-p needs, a value's weight being
    exp(value - most). wanted, draw: as `Wanted` and `Draw`. spare: as `Spare`, for FEW.
    """
    key = key_of(x)
    threshold = tl.full([], LOWEST + 1, tl.int32)
    if (wanted.needs & TOP_K) != 0:  # noqa: SIM102 - else nothing is counted
        if tl.sum((key >= threshold).to(tl.int32)) > wanted.k:
            threshold = kth_largest(key, most, wanted.k)
    keep = key >= threshold
    kept = tl.sum(keep.to(tl.int32))
    best = tl.full([], NOTHING, tl.int64)
    if kept <= FEW:
        place = tl.cumsum(keep.to(tl.int32), 0) - 1
        tl.store(spare.x + place, x, mask=keep)
        tl.store(spare.ids + place, ids, mask=keep)
        tl.debug_barrier()
        at = tl.arange(0, FEW)
        few = tl.load(spare.x + at, mask=at < kept, other=float("-inf"))
        few_ids = tl.load(spare.ids + at, mask=at < kept, other=0)
        best = _of_few(few, few_ids, most, outside, wanted, draw)
    else:
        weight = tl.where(keep, tl.exp(x - most), 0.0)
        if (wanted.needs & TOP_P) != 0:
            allowed = wanted.tail * (tl.sum(weight) + outside)
            keep = key >= nucleus(key, weight, threshold, most, outside, allowed)
        if (wanted.needs & MIN_P) != 0:
            keep = keep & (weight >= wanted.min_p)
        noisy = tl.where(keep, x + noise_of(ids, draw), float("-inf"))
        best = tl.max(rank_of(noisy, ids))
    return best


@triton.jit
def _of_few(x, ids, most, outside, wanted, draw):
    """So few that each is compared with each."""
    weight = tl.exp(x - most)
    keep = weight >= 0
    if (wanted.needs & TOP_P) != 0:
        allowed = wanted.tail * (tl.sum(weight) + outside)
        upto = outside + tl.sum(tl.where(x[None, :] <= x[:, None], weight[None, :], 0.0), axis=1)
        keep = (upto > allowed) | (x == most)
    if (wanted.needs & MIN_P) != 0:
        keep = keep & (weight >= wanted.min_p)
    noisy = tl.where(keep, x + noise_of(ids, draw), float("-inf"))
    return tl.max(rank_of(noisy, ids))
