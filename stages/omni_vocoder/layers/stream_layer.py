"""Layers for signals in pieces, and their composition.

Shapes here and in the files beside: B rows, C channels, T samples (or positions) at a layer's rate.
"""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from omni_vocoder.state import StreamChunk


class StreamLayer(nn.Module, ABC):
    """A layer whose output for a piece of a stream equals that part of its output for the whole. The chunk holds its
    past inputs."""

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
