"""The convolutional layers behind the transformer: upsampling of frames, then of samples up to the waveform.

Shapes: B rows, C channels, T samples at the layer's rate.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from omni_qwen3_omni.code2wav.conv import CausalConv, CausalTransposedConv
from omni_qwen3_omni.code2wav.state import Chunk, StateLayout

_DILATIONS = (1, 3, 9)


class SnakeBeta(nn.Module):
    """x + sin²(a x) / b, a and b learned per channel as logarithms (Ziyin et al., 2020; BigVGAN)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, signal_BCT: Tensor) -> Tensor:
        frequency_C1 = self.alpha.exp().unsqueeze(1)
        magnitude_C1 = (self.beta.exp() + 1e-9).reciprocal().unsqueeze(1)
        wave_BCT = (signal_BCT * frequency_C1).sin_().square_()
        return torch.addcmul(signal_BCT, magnitude_C1, wave_BCT)


class Serial(nn.ModuleList):
    """Layers with state, one after the other."""

    def forward(self, signal_BCT: Tensor, chunk: Chunk) -> Tensor:
        for layer in self:
            signal_BCT = layer(signal_BCT, chunk)
        return signal_BCT


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution and a pointwise MLP as a residual branch (Liu et al., 2022), causal."""

    def __init__(self, layout: StateLayout, channels: int) -> None:
        super().__init__()
        self.dwconv = CausalConv(layout, channels, channels, kernel=7, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1 = nn.Linear(channels, 4 * channels)
        self.pwconv2 = nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.ones(channels))

    def forward(self, signal_BCT: Tensor, chunk: Chunk) -> Tensor:
        mixed_BTC = self.norm(self.dwconv(signal_BCT, chunk).transpose(1, 2))
        branch_BTC: Tensor = self.gamma * self.pwconv2(F.gelu(self.pwconv1(mixed_BTC)))
        return signal_BCT + branch_BTC.transpose(1, 2)


class ResidualUnit(nn.Module):
    def __init__(self, layout: StateLayout, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1 = SnakeBeta(channels)
        self.conv1 = CausalConv(layout, channels, channels, kernel=7, dilation=dilation)
        self.act2 = SnakeBeta(channels)
        self.conv2 = CausalConv(layout, channels, channels, kernel=1)

    def forward(self, signal_BCT: Tensor, chunk: Chunk) -> Tensor:
        branch_BCT: Tensor = self.conv2(self.act2(self.conv1(self.act1(signal_BCT), chunk)), chunk)
        return branch_BCT + signal_BCT


class DecoderBlock(nn.Module):
    """Upsamples by `rate`, then residual units of growing dilation."""

    def __init__(self, layout: StateLayout, in_channels: int, out_channels: int, rate: int) -> None:
        super().__init__()
        self.block = nn.ModuleList(
            [
                SnakeBeta(in_channels),
                CausalTransposedConv(layout, in_channels, out_channels, rate, overlap=True),
                *(ResidualUnit(layout, out_channels, dilation) for dilation in _DILATIONS),
            ]
        )

    def forward(self, signal_BCT: Tensor, chunk: Chunk) -> Tensor:
        activation, upsample, *units = self.block
        signal_BCT = upsample(activation(signal_BCT), chunk)
        for unit in units:
            signal_BCT = unit(signal_BCT, chunk)
        return signal_BCT
