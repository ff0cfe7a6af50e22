"""Convolutions over time that take a signal in pieces. Shapes: B rows, C channels, T samples at the layer's rate."""

from torch import Tensor, nn

from omni_qwen3_omni.code2wav.state import Chunk, StateLayout


class CausalConv(nn.Module):
    """Convolution that sees the present and the past; before the first sample there are zeros."""

    def __init__(
        self, layout: StateLayout, in_channels: int, out_channels: int, kernel: int, dilation: int = 1, groups: int = 1
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(in_channels, out_channels, kernel, dilation=dilation, groups=groups)
        self.past = layout.reserve(in_channels, (kernel - 1) * dilation, time=1)

    def forward(self, signal_BCT: Tensor, chunk: Chunk) -> Tensor:
        """`[B, in_channels, T]` to `[B, out_channels, T]`."""
        if signal_BCT.shape[2] == 0:
            return signal_BCT.new_empty(signal_BCT.shape[0], self.conv.out_channels, 0)
        output_BCT: Tensor = self.conv(chunk.extend(self.past, signal_BCT))
        return output_BCT


class CausalTransposedConv(nn.Module):
    """Upsampling by `rate`, with a kernel of one or two rates.

    Kernels of two rates overlap, and the network was trained with one rate cut off either end of the output: an output
    is known once the next input is there. So the last input is carried over, and L inputs give (L - 1) * rate outputs.
    """

    def __init__(self, layout: StateLayout, in_channels: int, out_channels: int, rate: int, *, overlap: bool) -> None:
        super().__init__()
        kernel, cut = (2 * rate, rate) if overlap else (rate, 0)
        self.conv = nn.ConvTranspose1d(in_channels, out_channels, kernel, stride=rate, padding=cut)
        self.overlap = int(overlap)
        self.past = layout.reserve(in_channels, self.overlap, time=1)

    def forward(self, signal_BCT: Tensor, chunk: Chunk) -> Tensor:
        """`[B, in_channels, T]`, T >= 1, to `[B, out_channels, T * rate]`; one rate fewer in a first chunk."""
        joined_BCT = chunk.extend(self.past, signal_BCT)
        if chunk.first:
            joined_BCT = joined_BCT[:, :, self.overlap :]
        if joined_BCT.shape[2] == self.overlap:
            return signal_BCT.new_empty(signal_BCT.shape[0], self.conv.out_channels, 0)
        output_BCT: Tensor = self.conv(joined_BCT)
        return output_BCT
