"""A tower for sound that convolves chunks over frames, and pools pairs of tokens.

Shape legend: C chunks, F frames or tokens of a chunk, T tokens, D width of a token.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from omni_encoder.layers import add_sinusoids
from omni_encoder.segments import Segments
from omni_encoder.towers.clip_encoder import Chunks, ClipEncoder, behind, clip_layers
from omni_encoder.towers.configs import ClipTowerConfig


def conv1d_chunks(half_chunk: int) -> Chunks:
    """half_chunk: half a chunk in mel frames, as in the config."""
    return Chunks(frames=2 * half_chunk, convolutions=1, pool=2)


class Conv1dClipEncoder(ClipEncoder):
    """Two convolutions over frames, one of stride 2: four mel frames give two tokens, which are pooled to one embedding. Tokens
    attend to those of their chunk. Outputs: `embeddings` `[n, D]`."""

    def __init__(self, config: ClipTowerConfig) -> None:
        super().__init__(config.num_mel_bins, conv1d_chunks(config.n_window))
        width = config.d_model
        self.conv1 = nn.Conv1d(config.num_mel_bins, width, 3, padding=1)
        self.conv2 = nn.Conv1d(width, width, 3, stride=2, padding=1)
        # Published, but unused.
        self.audio_bos_eos_token = nn.Embedding.from_pretrained(torch.empty(2, config.output_dim))
        self.layers = clip_layers(config, key_bias=False)
        self.ln_post = nn.LayerNorm(width)
        self.proj = nn.Linear(width, config.output_dim)

    def encode(self, inputs: Mapping[str, Tensor], segments: tuple[int, ...] | None) -> Mapping[str, Tensor]:
        # The second convolution must see zeros after a chunk's frames, not the first one's bias.
        behind_C1F = behind(inputs["chunks"], inputs["frames"])
        x_CDF = gelu(self.conv1(self.cut(inputs).to(self.conv1.weight.dtype))).masked_fill(behind_C1F, 0)
        placed_CFD = add_sinusoids(gelu(self.conv2(x_CDF)).transpose(1, 2))
        x_TD = placed_CFD.flatten(0, 1).index_select(0, inputs["tokens"])
        within = Segments(inputs["bounds"], segments)
        for layer in self.layers:
            x_TD = layer(x_TD, within)
        firsts = inputs["firsts"]
        pooled = (x_TD.index_select(0, firsts) + x_TD.index_select(0, firsts + 1)) / 2
        return {"embeddings": self.proj(self.ln_post(pooled))}
