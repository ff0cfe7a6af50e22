"""fp32 values as integers of the same order, and values with their ids as one integer, for selection and argmax."""

import triton
import triton.language as tl

LOWEST = tl.constexpr(-2139095041)
"""The key of minus infinity."""

NOTHING = tl.constexpr(-(2**63))
"""A value below every rank."""


@triton.jit
def key_of(x):
    """int32 keys with the order of fp32. Both zeros have the same key: they are equal, and the lower id wins."""
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def value_of(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def rank_of(x, ids):
    """int64 ranks, whose maximum belongs to the largest value; of equal values, to the lowest id."""
    return (key_of(x).to(tl.int64) << 32) | (0x7FFFFFFF - ids).to(tl.int64)


@triton.jit
def id_of(rank):
    """The id of a rank; -1 if its value is minus infinity, or the rank is `NOTHING`."""
    return tl.where((rank >> 32) <= LOWEST, -1, 0x7FFFFFFF - (rank & 0x7FFFFFFF))
