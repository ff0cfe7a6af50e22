"""Layers for signals in pieces, and their composition. Parameters of convolutions are those of the given one, `conv`.

Shapes here and in the files beside: B rows, C channels, T samples (or positions) at a layer's rate.
"""

from abc import ABC, abstractmethod

from torch import Tensor, nn
from torch.nn.functional import pad

from omni_vocoder.state import StateLayout, StreamChunk


class StreamLayer(nn.Module, ABC):
    """A layer whose output for a piece of a stream equals that part of its output for the whole."""

    @abstractmethod
    def forward(self, signal_BCT: Tensor, chunk: StreamChunk | None) -> Tensor:
        """`[B, inputs, T]` to `[B, outputs, T at the output's rate]`. chunk: None for a whole signal."""


class Serial(nn.ModuleList):
    """A sequence of stream layers and sample-wise modules."""

    def forward(self, signal_BCT: Tensor, chunk: StreamChunk | None) -> Tensor:
        for layer in self:
            streams = isinstance(layer, StreamLayer | Serial)
            signal_BCT = layer(signal_BCT, chunk) if streams else layer(signal_BCT)
        return signal_BCT


class Residual(StreamLayer):
    """Adds a branch to the signal, or to a shortcut of it."""

    def __init__(self, block: Serial, shortcut: StreamLayer | nn.Identity) -> None:
        super().__init__()
        self.block = block
        self.shortcut = shortcut

    def forward(self, signal_BCT: Tensor, chunk: StreamChunk | None) -> Tensor:
        passed_BCT = self.shortcut(signal_BCT, chunk) if isinstance(self.shortcut, StreamLayer) else signal_BCT
        output_BCT: Tensor = passed_BCT + self.block(signal_BCT, chunk)
        return output_BCT


class CausalConv(StreamLayer):
    """Convolution that sees the present and the past.

    conv: without padding. pad_mode: padding before a whole signal, and after it up to a full stride, as in
    `torch.nn.functional.pad`. Before a stream the padding is zeros. Strided convolutions support whole signals only.
    """

    def __init__(self, layout: StateLayout, conv: nn.Conv1d, pad_mode: str = "constant") -> None:
        super().__init__()
        self.conv = conv
        past = (conv.kernel_size[0] - 1) * conv.dilation[0] + 1 - conv.stride[0]
        self.past = layout.reserve(conv.in_channels, past)
        self.pad_mode = pad_mode

    def forward(self, signal_BCT: Tensor, chunk: StreamChunk | None) -> Tensor:
        """`[B, inputs, T]` to `[B, outputs, ceil(T / stride)]`."""
        count = signal_BCT.shape[2]
        if count == 0:
            return signal_BCT.new_empty(signal_BCT.shape[0], self.conv.out_channels, 0)
        if chunk is None:
            joined_BCT = pad(signal_BCT, (self.past.length, -count % self.conv.stride[0]), mode=self.pad_mode)
        else:
            joined_BCT = chunk.extend(self.past, signal_BCT)
        output_BCT: Tensor = self.conv(joined_BCT)
        return output_BCT


class CausalTransposedConv(StreamLayer):
    """Upsampling by the stride of `conv`. The last inputs' contribution to later outputs is part of the state.

    The padding of `conv` removes that many samples from the beginning of the whole signal, as in training: a stream's
    first chunk is shorter by them, and later chunks are full. This requires padding <= kernel - stride.
    """

    def __init__(self, layout: StateLayout, conv: nn.ConvTranspose1d) -> None:
        super().__init__()
        self.conv = conv
        self.past = layout.reserve(conv.in_channels, -(-conv.kernel_size[0] // conv.stride[0]) - 1)

    def forward(self, signal_BCT: Tensor, chunk: StreamChunk | None) -> Tensor:
        """`[B, inputs, T]` to `[B, outputs, T * stride]`; at the beginning of a signal, shorter by the padding."""
        count, stride, cut = signal_BCT.shape[2], self.conv.stride[0], int(self.conv.padding[0])
        joined_BCT = signal_BCT if chunk is None else chunk.extend(self.past, signal_BCT)
        if chunk is not None and chunk.first:
            joined_BCT = signal_BCT
        before = joined_BCT.shape[2] - count
        start = max(before * stride - cut, 0)
        length = count * stride - (0 if before else cut)
        if length <= 0:
            return signal_BCT.new_empty(signal_BCT.shape[0], self.conv.out_channels, 0)
        output_BCT: Tensor = self.conv(joined_BCT)
        return output_BCT.narrow(2, start, length)
