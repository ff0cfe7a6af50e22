"""An activation at twice the rate, so that its harmonics alias less. Shape legend: B rows, C channels, T samples."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, pad

_TAPS = 12
"""Taps of the resampling filters around an activation, which double and halve the rate."""
_HALF = _TAPS // 4
"""Reach of each filter to either side, in samples at the lower rate."""
_KAISER_BETA = 0.1102 * (2.285 * (_TAPS // 2 - 1) * math.pi * 1.2 + 7.95 - 8.7)


class AliasFree(nn.Module):
    """act: the activation at twice the rate, on `[B, C, 2, T]`, elementwise within a channel.

    The two samples for one input sample are two channels: doubling is one convolution to two channels, halving is one
    back, and no interleaving is needed.
    """

    REACH = 2 * _HALF - 1
    """Number of samples to either side that an output depends on."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.act = act
        taps = _filter().flip(0)
        # Doubling: the even sample uses the odd taps, and the odd sample the even taps one sample later.
        up = torch.zeros(2, 1, 2 * _HALF + 1, device="cpu")
        up[0, 0, :-1], up[1, 0, 1:] = 2 * taps[0::2], 2 * taps[1::2]
        down = torch.zeros(1, 2, 2 * _HALF + 1, device="cpu")
        down[0, 0, 1:], down[0, 1, :-1] = taps[1::2], taps[0::2]
        self.up = nn.Buffer(up.to(torch.get_default_device()), persistent=False)
        self.down = nn.Buffer(down.to(torch.get_default_device()), persistent=False)

    def forward(self, signal_BCT: Tensor) -> Tensor:
        """`[B, C, T]` to the same shape."""
        rows, channels, length = signal_BCT.shape
        single = pad(signal_BCT.reshape(-1, 1, length), (_HALF, _HALF), mode="replicate")
        twice = self.act(conv1d(single, self.up).view(rows, channels, 2, length)).view(-1, 2, length)
        before, after = twice[:, :1, :1].expand(-1, 2, _HALF), twice[:, 1:, -1:].expand(-1, 2, _HALF)
        halved: Tensor = conv1d(torch.cat((before, twice, after), 2), self.down)
        return halved.view(rows, channels, length)


def _filter() -> Tensor:
    """A windowed sinc at half of the Nyquist frequency, `[taps]`, whose taps sum to 1."""
    time_N = torch.arange(_TAPS, device="cpu") - (_TAPS - 1) / 2
    window_N = torch.kaiser_window(_TAPS, periodic=False, beta=_KAISER_BETA, dtype=torch.float32, device="cpu")
    taps_N = torch.sinc(time_N / 2) * window_N
    return taps_N / taps_N.sum()
