"""Layers that take a signal piece by piece, and how they are put together.

Shapes here and in the files beside: B rows, C channels, T samples (or positions) at a layer's rate.
"""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from omni_vocoder.state import StreamChunk


class StreamLayer(nn.Module, ABC):
    """Gives for each piece of a stream what it would give there for the whole: its past comes from the chunk."""

    @abstractmethod
    def forward(self, signal_BCT: Tensor, chunk: StreamChunk | None) -> Tensor:
        """`[B, inputs, T]` to `[B, outputs, T at the output's rate]`. chunk: None if the signal is a whole one."""


class Serial(nn.ModuleList):
    """Layers one after the other, of streams or of single samples."""

    def forward(self, signal_BCT: Tensor, chunk: StreamChunk | None) -> Tensor:
        for layer in self:
            streams = isinstance(layer, StreamLayer | Serial)
            signal_BCT = layer(signal_BCT, chunk) if streams else layer(signal_BCT)
        return signal_BCT


class Residual(StreamLayer):
    """A branch beside the signal, or beside a shortcut of it."""

    def __init__(self, block: Serial, shortcut: StreamLayer | nn.Identity) -> None:
        super().__init__()
        self.block = block
        self.shortcut = shortcut

    def forward(self, signal_BCT: Tensor, chunk: StreamChunk | None) -> Tensor:
        passed_BCT = self.shortcut(signal_BCT, chunk) if isinstance(self.shortcut, StreamLayer) else signal_BCT
        output_BCT: Tensor = passed_BCT + self.block(signal_BCT, chunk)
        return output_BCT
