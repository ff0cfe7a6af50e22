"""The activation between two of torch's convolutions. The two samples that replace one are two channels, so one convolution doubles
the rate and another halves it, without interleaving. Shape legend: see the package."""

import math
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, pad

TAPS = 12
"""Taps of the resampling filter."""
HALF = TAPS // 4
"""Reach of each resampling to either side, in samples of the signal."""
REACH = 2 * HALF - 1
"""Number of samples to either side that an output depends on."""
_KAISER_BETA = 0.1102 * (2.285 * (TAPS // 2 - 1) * math.pi * 1.2 + 7.95 - 8.7)


def alias_free(signal_BCT: Tensor, act: nn.Module, up_21K: Tensor, down_12K: Tensor) -> Tensor:
    rows, channels, length = signal_BCT.shape
    single = pad(signal_BCT.reshape(-1, 1, length), (HALF, HALF), mode="replicate")
    twice = act(conv1d(single, up_21K).view(rows, channels, 2, length)).view(-1, 2, length)
    before, after = twice[:, :1, :1].expand(-1, 2, HALF), twice[:, 1:, -1:].expand(-1, 2, HALF)
    halved: Tensor = conv1d(torch.cat((before, twice, after), 2), down_12K)
    return halved.view(rows, channels, length)


@cache
def resampling_taps() -> tuple[float, ...]:
    """A windowed sinc at half of the Nyquist frequency, symmetric. Its taps sum to 1."""
    time_N = torch.arange(TAPS, device="cpu") - (TAPS - 1) / 2
    window_N = torch.kaiser_window(TAPS, periodic=False, beta=_KAISER_BETA, dtype=torch.float32, device="cpu")
    taps_N = torch.sinc(time_N / 2) * window_N
    return tuple((taps_N / taps_N.sum()).tolist())


def resampling_filters() -> tuple[Tensor, Tensor]:
    """Weights of the two convolutions, `[2, 1, K]` and `[1, 2, K]`, float32 on the CPU."""
    taps = torch.tensor(resampling_taps(), dtype=torch.float32, device="cpu")
    # Of the two samples that replace one, the first is a sum with the even taps, the second with the odd ones, a sample further on.
    up_21K = torch.zeros(2, 1, 2 * HALF + 1, dtype=torch.float32, device="cpu")
    up_21K[0, 0, :-1], up_21K[1, 0, 1:] = 2 * taps[0::2], 2 * taps[1::2]
    down_12K = torch.zeros(1, 2, 2 * HALF + 1, dtype=torch.float32, device="cpu")
    down_12K[0, 0, 1:], down_12K[0, 1, :-1] = taps[1::2], taps[0::2]
    return up_21K, down_12K
