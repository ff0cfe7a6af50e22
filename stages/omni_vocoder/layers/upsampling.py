"""Blocks of convolutional decoders, from frames up to samples, and the numbers and the delay of these samples."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from omni_frames.snake import SnakeBeta
from omni_vocoder.layers.stream_layer import CausalConv, CausalTransposedConv, Serial, StreamLayer
from omni_vocoder.state import StateLayout, StreamChunk


@dataclass(frozen=True, slots=True)
class UpsamplingRates:
    """Factors by which a signal is stretched, in order. plain: without lookahead. looking_ahead: of later convolutions, each of
    which removes `rate` samples from the beginning, like `SnakeUpsampling`."""

    plain: tuple[int, ...]
    looking_ahead: tuple[int, ...] = ()

    @property
    def samples_per_frame(self) -> int:
        return math.prod(self.plain) * math.prod(self.looking_ahead)

    @property
    def lookahead(self) -> int:
        """Number of samples at the end of n frames that depend on frame n + 1. A convolution of rate r turns L samples into (L - 1)
        r: a shortfall of s samples grows to (s + 1) r."""
        shortfall = 0
        for rate in self.looking_ahead:
            shortfall = (shortfall + 1) * rate
        return shortfall

    @property
    def min_first_frames(self) -> int:
        """Minimum frames that can start a stream: every convolution needs at least one sample."""
        needed = 0
        for rate in reversed(self.looking_ahead):
            needed = -(-needed // rate) + 1
        return max(-(-needed // math.prod(self.plain)), 1)


_DILATIONS = (1, 3, 9)


class ConvNeXtBlock(StreamLayer):
    """Depthwise convolution and a pointwise MLP as a residual branch (Liu et al., 2022), causal."""

    def __init__(self, layout: StateLayout, channels: int) -> None:
        super().__init__()
        self.dwconv = CausalConv(layout, nn.Conv1d(channels, channels, 7, groups=channels))
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1 = nn.Linear(channels, 4 * channels)
        self.pwconv2 = nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.ones(channels))

    def forward(self, signal_BCT: Tensor, chunk: StreamChunk | None) -> Tensor:
        mixed_BTC = self.norm(self.dwconv(signal_BCT, chunk).transpose(1, 2))
        branch_BTC: Tensor = self.gamma * self.pwconv2(gelu(self.pwconv1(mixed_BTC)))
        return signal_BCT + branch_BTC.transpose(1, 2)


class SnakeUnit(StreamLayer):
    """A dilated convolution and a pointwise one, each after a `SnakeBeta`, as a residual branch."""

    def __init__(self, layout: StateLayout, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1 = SnakeBeta(channels)
        self.conv1 = CausalConv(layout, nn.Conv1d(channels, channels, 7, dilation=dilation))
        self.act2 = SnakeBeta(channels)
        self.conv2 = CausalConv(layout, nn.Conv1d(channels, channels, 1))

    def forward(self, signal_BCT: Tensor, chunk: StreamChunk | None) -> Tensor:
        branch_BCT: Tensor = self.conv2(self.act2(self.conv1(self.act1(signal_BCT), chunk)), chunk)
        return branch_BCT + signal_BCT


class SnakeUpsampling(StreamLayer):
    """Upsamples by `rate`, each output from two inputs, then `SnakeUnit`s of growing dilation. Looks ahead by one input: see
    `CausalTransposedConv` for the beginning of a stream."""

    def __init__(self, layout: StateLayout, in_channels: int, out_channels: int, rate: int) -> None:
        super().__init__()
        upsample = nn.ConvTranspose1d(in_channels, out_channels, 2 * rate, stride=rate, padding=rate)
        self.block = Serial(
            [
                SnakeBeta(in_channels),
                CausalTransposedConv(layout, upsample),
                *(SnakeUnit(layout, out_channels, dilation) for dilation in _DILATIONS),
            ]
        )

    def forward(self, signal_BCT: Tensor, chunk: StreamChunk | None) -> Tensor:
        output_BCT: Tensor = self.block(signal_BCT, chunk)
        return output_BCT


def convnext_upsampling(layout: StateLayout, channels: int, ratios: Sequence[int]) -> Serial:
    """Stretches a signal by each ratio in turn, without lookahead, each followed by a `ConvNeXtBlock`."""
    stretch = (nn.ConvTranspose1d(channels, channels, ratio, stride=ratio) for ratio in ratios)
    return Serial(Serial([CausalTransposedConv(layout, conv), ConvNeXtBlock(layout, channels)]) for conv in stretch)
