"""`SnakeBeta` at twice the rate, in one pass over the signal. A thread computes a few neighbouring samples: most samples at twice
the rate are terms of several of them, and are computed once.

Shape legend: see the package; besides, L threads of a program, each with COUNT neighbouring samples of one channel.
"""

import triton
import triton.language as tl
from torch import Tensor

from omni_diffusion.kernels.alias_free.reference import HALF, TAPS, resampling_taps
from omni_frames.kernels.snake import load_snake, sine_of_half_turns

COUNT = 8
"""Samples that one thread computes. More of them share more of the work, but spread a warp's loads over more cache lines."""
_THREADS = 128


def alias_free(signal_BCT: Tensor, alpha_C: Tensor, beta_C: Tensor) -> Tensor:
    """Launches the kernel. signal_BCT: contiguous."""
    rows, channels, length = signal_BCT.shape
    out_BCT = signal_BCT.new_empty(rows, channels, length)
    parts = triton.cdiv(length, COUNT)
    threads = rows * channels * parts
    _alias_free_snake[(triton.cdiv(threads, _THREADS),)](
        signal_BCT,
        alpha_C,
        beta_C,
        out_BCT,
        threads,
        parts,
        length,
        channels,
        # Symmetric: the second half repeats the first.
        *resampling_taps()[: TAPS // 2],
        HALF=HALF,
        COUNT=COUNT,
        THREADS=_THREADS,
        num_warps=_THREADS // 32,
    )
    return out_BCT


@triton.jit(do_not_specialize=["threads", "parts", "length", "channels"])
def _alias_free_snake(
    signal_ptr,
    alpha_ptr,
    beta_ptr,
    out_ptr,
    threads,
    parts,
    length,
    channels,
    tap0,
    tap1,
    tap2,
    tap3,
    tap4,
    tap5,
    HALF: tl.constexpr,
    COUNT: tl.constexpr,
    THREADS: tl.constexpr,
):
    thread_L = tl.program_id(0) * THREADS + tl.arange(0, THREADS)
    live_L = thread_L < threads
    # Number of a channel, counted over all rows.
    line_L = (thread_L // parts).to(tl.int64)
    first_L = thread_L % parts * COUNT
    frequency_L, divisor_L = load_snake(alpha_ptr, beta_ptr, line_L % channels, live_L)
    signal_L = signal_ptr + line_L * length
    magnitude_L = 1 / divisor_L
    even_taps = (tap0, tap2, tap4, tap5, tap3, tap1)
    odd_taps = (tap1, tap3, tap5, tap4, tap2, tap0)

    samples = ()
    for offset in tl.static_range(COUNT + 4 * HALF):
        position_L = tl.minimum(tl.maximum(first_L + (offset - 2 * HALF), 0), length - 1)
        samples += (tl.load(signal_L + position_L, mask=live_L, other=0.0).to(tl.float32),)  # type: ignore[assignment]

    # Pairs at twice the rate, from HALF before the thread's first sample to HALF after its last.
    evens, odds = (), ()
    for pair in tl.static_range(COUNT + 2 * HALF):
        even_L, odd_L = samples[pair] * even_taps[0], samples[pair + 1] * odd_taps[0]
        for tap in tl.static_range(1, 2 * HALF):
            even_L += samples[pair + tap] * even_taps[tap]
            odd_L += samples[pair + 1 + tap] * odd_taps[tap]
        even_L = _snake(2 * even_L, frequency_L, magnitude_L)
        odd_L = _snake(2 * odd_L, frequency_L, magnitude_L)
        if pair > HALF:
            # After the signal's end, its last sample at twice the rate. A thread's first pair is always inside.
            inside_L = first_L + (pair - HALF) < length
            odd_L = tl.where(inside_L, odd_L, odds[pair - 1])
            even_L = tl.where(inside_L, even_L, odd_L)
        evens += (even_L,)  # type: ignore[assignment]
        odds += (odd_L,)  # type: ignore[assignment]

    for index in tl.static_range(COUNT):
        sum_L = tl.zeros([THREADS], tl.float32)
        for tap in tl.static_range(2 * HALF):
            # In front of the signal, its first sample at twice the rate.
            even_L, odd_L = evens[index + 1 + tap], odds[index + tap]
            if index + 1 + tap < HALF:
                even_L = tl.where(first_L == 0, evens[HALF], even_L)
            if index + tap < HALF:
                odd_L = tl.where(first_L == 0, evens[HALF], odd_L)
            sum_L += even_L * odd_taps[tap] + odd_L * even_taps[tap]
        position_L = first_L + index
        out_L = out_ptr + line_L * length + position_L
        tl.store(out_L, sum_L.to(out_ptr.dtype.element_ty), mask=live_L & (position_L < length))


@triton.jit
def _snake(x, frequency, magnitude):
    sine = sine_of_half_turns(x * frequency)
    return x + sine * sine * magnitude
