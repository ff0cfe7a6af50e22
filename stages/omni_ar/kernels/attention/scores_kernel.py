"""Scores of attention that are more than scaled products: softcap and ALiBi.

Scores are in units of log2(e), for exp2, the exponential that the hardware has.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def capped_and_biased(scores, scale, slope, distance, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr):
    """Returns the scores of products. scale: in units of log2(e). slope: the slope of each score's query head. distance: key
    position minus query position. SOFTCAP: 0 for none."""
    scores = scores * scale
    if SOFTCAP > 0:
        # tanh(x) = (1 - e) / (1 + e) for e = exp(-2 |x|), which does not overflow; 2 x = scores * 2 / (SOFTCAP * log2(e)).
        shrunk = tl.exp2(tl.abs(scores) * (-2.0 / SOFTCAP))
        bounded = (1.0 - shrunk) / (1.0 + shrunk) * (SOFTCAP * LOG2E)
        scores = tl.where(scores < 0, -bounded, bounded)
    if ALIBI:
        scores += slope * distance.to(tl.float32) * LOG2E
    return scores
