"""A tower for sound that convolves chunks over frames and mel bins.

Shape legend: C chunks, F frames or tokens of a chunk, M mel bins, K channels, T tokens, D width of a token.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from omni_encoder.layers import ACTIVATIONS, add_sinusoids
from omni_encoder.segments import Segments
from omni_encoder.towers.clip_encoder import Chunks, ClipEncoder, clip_layers
from omni_encoder.towers.configs import ClipTowerConfig


class Conv2dClipConfig(ClipTowerConfig, frozen=True, kw_only=True):
    """n_window_infer: mel frames within which tokens attend to each other. conv_chunksize: the most chunks that are convolved at
    once, which bounds memory. downsample_hidden_size: channels of the convolutions."""

    n_window_infer: int
    conv_chunksize: int
    downsample_hidden_size: int


def conv2d_chunks(half_chunk: int, attended: int | None = None) -> Chunks:
    """half_chunk, attended: half a chunk, and the range of attention, in mel frames, as in the config. Without `attended` only for
    numbers of tokens."""
    run = 1 if attended is None else attended // (2 * half_chunk)
    return Chunks(frames=2 * half_chunk, convolutions=3, run=run)


class Conv2dClipEncoder(ClipEncoder):
    """Three convolutions of stride 2 over frames and mel bins. Items: as in `ClipEncoder`, with `chunk`. Outputs: `embeddings`
    `[n, D]`."""

    def __init__(self, config: Conv2dClipConfig) -> None:
        chunks = conv2d_chunks(config.n_window, config.n_window_infer)
        super().__init__(config.num_mel_bins, chunks)
        channels, width = config.downsample_hidden_size, config.d_model
        self._convolved = config.conv_chunksize
        self._activation = ACTIVATIONS[config.activation_function]
        self.conv2d1 = nn.Conv2d(1, channels, 3, stride=2, padding=1)
        self.conv2d2 = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.conv2d3 = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        bins = -(-config.num_mel_bins // (1 << chunks.convolutions))
        self.conv_out = nn.Linear(channels * bins, width, bias=False)
        self.layers = clip_layers(config, key_bias=True)
        self.ln_post = nn.LayerNorm(width)
        self.proj1 = nn.Linear(width, width)
        self.proj2 = nn.Linear(width, config.output_dim)

    def encode(self, inputs: Mapping[str, Tensor], segments: tuple[int, ...] | None) -> Mapping[str, Tensor]:
        placed_CFD = add_sinusoids(self._convolve(self.cut(inputs)))
        x_TD = placed_CFD.flatten(0, 1).index_select(0, inputs["tokens"])
        within = Segments(inputs["bounds"], segments)
        for layer in self.layers:
            x_TD = layer(x_TD, within)
        return {"embeddings": self.proj2(self._activation(self.proj1(self.ln_post(x_TD))))}

    def _convolve(self, chunks_CMF: Tensor) -> Tensor:
        """The tokens of all chunks, `[C, F, D]`."""
        parts = []
        for x_CKMF in chunks_CMF[:, None].to(self.conv2d1.weight.dtype).split(self._convolved):
            for convolution in (self.conv2d1, self.conv2d2, self.conv2d3):
                x_CKMF = gelu(convolution(x_CKMF))
            parts.append(x_CKMF)
        tokens_CFD: Tensor = self.conv_out(torch.cat(parts).permute(0, 3, 1, 2).flatten(2))
        return tokens_CFD
