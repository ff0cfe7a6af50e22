"""Logits as integers with the same order that include their expert: one maximum finds both, and no two are equal.

The key includes the expert's complement, so that of equal logits the first expert's key is the largest.
"""

import triton
import triton.language as tl

_EXPERT_BITS = tl.constexpr(8191)
"""Bits for the expert: float32 bits below those of a bf16 or fp16 logit."""
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)


@triton.jit
def lowest_of(keys):
    """A number below all keys."""
    return -9223372036854775808 if keys.dtype == tl.int64 else -2147483648


@triton.jit
def ranking_keys(logits, e, E: tl.constexpr):
    """Keys of the logits of experts `e`; keys past expert E - 1 are below all others."""
    # NaN becomes -inf, and -0 becomes +0.
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
