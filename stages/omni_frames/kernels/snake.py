"""`SnakeBeta` within a kernel."""

import triton
import triton.language as tl


@triton.jit
def load_snake(alpha_ptr, beta_ptr, channel, live):
    """Frequency and divisor of channels, fp32, from their logarithms."""
    frequency = tl.exp(tl.load(alpha_ptr + channel, mask=live, other=0.0).to(tl.float32))
    divisor = tl.exp(tl.load(beta_ptr + channel, mask=live, other=0.0).to(tl.float32)) + 1e-9
    return frequency, divisor


@triton.jit
def sine_of_half_turns(x):
    """The sine of x except for its sign, which its square does not need: x is reduced by multiples of pi. A polynomial, since the
    exact sine of CUDA's library takes several times as long."""
    turns = tl.floor(x * 0.3183098861837907 + 0.5)
    # pi in three parts: products with the first two are exact up to 2^15 turns.
    x = x - turns * 3.140625
    x = x - turns * 0.0009670257568359375
    x = x - turns * 6.278329571e-07
    square = x * x
    series = -2.505210838544172e-08
    series = series * square + 2.7557319223985893e-06
    series = series * square - 0.0001984126984126984
    series = series * square + 0.008333333333333333
    series = series * square - 0.16666666666666666
    return x + x * square * series
