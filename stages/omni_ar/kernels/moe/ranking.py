"""Logits as integers that order like them and carry their expert along: one maximum finds both, and no two are equal.

What is carried is the expert's complement, so that of equal logits the first expert's is the largest.
"""

import triton
import triton.language as tl

_EXPERT_BITS = tl.constexpr(8191)
"""Experts fit below the bits that a half-precision logit has in float32, bf16's and fp16's alike."""
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)


@triton.jit
def lowest_of(keys):
    """A number below all keys."""
    return -9223372036854775808 if keys.dtype == tl.int64 else -2147483648


@triton.jit
def ranking_keys(logits, e, E: tl.constexpr):
    """Keys of the logits of experts `e`; past expert E - 1 they lie below all others."""
    # NaN compares with nothing, and -0 equals +0.
    value = tl.where(logits == logits, logits.to(tl.float32), float("-inf")) + 0.0
    bits = value.to(tl.int32, bitcast=True)
    order = bits ^ ((bits >> 31) & _MAGNITUDE)
    ordered = (order.to(tl.int64) << 32) if logits.dtype == tl.float32 else (order & ~_EXPERT_BITS)
    keys = ordered | (e ^ _EXPERT_BITS)
    return tl.where(e < E, keys, lowest_of(keys))


@triton.jit
def next_key(keys, best):
    """The largest of the keys below `best`."""
    return tl.max(tl.where(keys < best, keys, lowest_of(keys)), axis=0)


@triton.jit
def expert_of(key):
    return ((key & _EXPERT_BITS) ^ _EXPERT_BITS).to(tl.int32)


@triton.jit
def logit_of(key):
    if key.dtype == tl.int64:
        order = (key >> 32).to(tl.int32)
        bits = order ^ ((order >> 31) & _MAGNITUDE)
    else:
        order = key & ~_EXPERT_BITS
        bits = (order ^ ((order >> 31) & _MAGNITUDE)) & ~_EXPERT_BITS
    return bits.to(tl.float32, bitcast=True)
