"""Thresholds by bisection over the keys of values: exact, without a sort.

One program holds the values. Keys are from `key_of`; `most` is the largest value. After some steps the ends move to
existing keys: with many equal values, bisection would otherwise continue to the last bit.
"""

import triton
import triton.language as tl

from omni_ar.kernels.sampling.order import LOWEST, key_of, value_of

# Values are averaged in so many steps, keys afterwards: most logits are close to the largest, among keys that are far apart.
_BY_VALUE = tl.constexpr(20)
_PLAIN = tl.constexpr(11)
_ABOVE_ALL = tl.constexpr(0x7FFFFFFF)


@triton.jit
def between(low, high, step, floor):
    """The next key to bisect at, between two keys that are at least 2 apart. Until `low` has left `floor`, its first value, steps
    down from `high` double: the key that is sought is near the largest."""
    down = value_of(high) - tl.exp2(step.to(tl.float32))
    average = tl.where(low == floor, down, 0.5 * value_of(low) + 0.5 * value_of(high))
    middle = tl.where(step < _BY_VALUE, key_of(average), (low & high) + ((low ^ high) >> 1))
    return tl.minimum(tl.maximum(middle, low + 1), high - 1)


@triton.jit
def kth_largest(key, most, k, enough):
    """A key that at least the k largest values reach: no more than `enough` values, or exactly k and those that tie with the last
    of them. More than k values are possible. enough: at least k."""
    floor = tl.full([], LOWEST + 1, tl.int32)
    low = floor
    high = key_of(most) + 1
    step = tl.full([], 0, tl.int32)
    while low + 1 < high:
        middle = between(low, high, step, floor)
        count = tl.sum((key >= middle).to(tl.int32))
        reach = count >= k
        if step >= _PLAIN:
            middle = _nearest(key, middle, reach)
        low = tl.where(reach, middle, low)
        high = tl.where(reach & (count <= enough), low + 1, tl.where(reach, high, middle))
        step += 1
    return low


@triton.jit
def nucleus(key, weight, low, most, outside, allowed):
    """The largest key below which the weight is at most `allowed`: the sum of `outside` and the weight of values from
    `low` on."""
    floor = low
    high = key_of(most) + 1
    step = tl.full([], 0, tl.int32)
    while low + 1 < high:
        middle = between(low, high, step, floor)
        fits = outside + tl.sum(tl.where(key < middle, weight, 0.0)) <= allowed
        if step >= _PLAIN:
            middle = _nearest(key, middle, fits)
        low = tl.where(fits, middle, low)
        high = tl.where(fits, high, middle)
        step += 1
    return low


@triton.jit
def _nearest(key, middle, up):
    """With `up`, the first key from `middle` on; else the first key after the last one below it. The values on each
    side stay the same."""
    nearest = middle
    if up:  # noqa: SIM108 - a branch: only one of the values is computed
        nearest = tl.min(tl.where(key >= middle, key, _ABOVE_ALL))
    else:
        nearest = tl.max(tl.where(key < middle, key, LOWEST)) + 1
    return nearest
