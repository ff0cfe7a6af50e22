"""The Gumbel noise of `omni_ar.sampling.rng`, from the same bits: Philox4x32-10, whose four output words serve four
ids."""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

_LOW32 = tl.constexpr(0xFFFFFFFF)
_LARGEST = tl.constexpr(1.0 - 2.0**-24)
_STEP = tl.constexpr(2.0**-32)
_HALF_STEP = tl.constexpr(2.0**-33)


class Draw(NamedTuple):
    """The Philox inputs of a row's draw besides the id: the last three words of the counter, uint32, and the two words
    of the key, uint64 below 2 ** 32."""

    position: Tensor
    sample: Tensor
    use: Tensor
    k0: Tensor
    k1: Tensor


@triton.jit
def draw_of(seeds, row, position, use):
    """seeds: as `Pointers` or `CodePointers`."""
    seed = tl.load(seeds.seed + row)
    index = tl.load(seeds.sample_index + row)
    low, high = (seed & _LOW32).to(tl.uint64), ((seed >> 32) & _LOW32).to(tl.uint64)
    return Draw(position.to(tl.uint32), index.to(tl.uint32), use.to(tl.uint32), low, high)


@triton.jit
def _philox(c0, draw):
    """Returns random bits by Philox. c0: uint32, the first word of the counter. draw: the other words and the key, as in `Draw`."""
    c1, c2, c3, k0, k1 = draw
    for _ in tl.static_range(10):
        # One wide multiplication computes both halves of a product.
        first = c0.to(tl.uint64) * 0xD2511F53
        second = c2.to(tl.uint64) * 0xCD9E8D57
        c0 = (second >> 32).to(tl.uint32) ^ c1 ^ k0.to(tl.uint32)
        c2 = (first >> 32).to(tl.uint32) ^ c3 ^ k1.to(tl.uint32)
        c1 = (second & _LOW32).to(tl.uint32)
        c3 = (first & _LOW32).to(tl.uint32)
        k0 = (k0 + 0x9E3779B9) & _LOW32
        k1 = (k1 + 0xBB67AE85) & _LOW32
    return c0, c1, c2, c3


@triton.jit
def _gumbel(word):
    u = tl.minimum(word.to(tl.float32) * _STEP + _HALF_STEP, _LARGEST)
    # -log1p(-u): the logarithm of the rounded 1 - u, times the correction for that rounding.
    rest = 1.0 - u
    taken = tl.where(rest == 1.0, 1.0, 1.0 - rest)
    return -tl.log(tl.where(rest == 1.0, u, -tl.log(rest) * (u / taken)))


@triton.jit
def noise_of(ids, draw):
    """Noise of any ids, at four times the cost of `noise_of_all`."""
    a, b, c, d = _philox((ids >> 2).to(tl.uint32), draw)
    place = ids & 3
    return _gumbel(tl.where(place == 0, a, tl.where(place == 1, b, tl.where(place == 2, c, d))))


@triton.jit
def noise_of_all(start, draw, COUNT: tl.constexpr):
    """Noise of COUNT ids from `start` on. start, COUNT: multiples of 4."""
    quad = (start // 4 + tl.arange(0, COUNT // 4)).to(tl.uint32)
    a, b, c, d = _philox(quad, draw)
    return _gumbel(tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [COUNT]))
