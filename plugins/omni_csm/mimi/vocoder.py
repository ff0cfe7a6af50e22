"""Mimi's decoder as a vocoder stage's model. Shapes: B rows, N frames, G codes of each, T positions at a layer's rate."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.mimi import modeling_mimi as hf

from omni.stage import StageContext
from omni_csm.config import SAMPLE_RATE, read_config
from omni_csm.mimi.codec import PER_FRAME, Codec
from omni_vocoder.layers import CausalTransposedConv
from omni_vocoder.model import VocoderModel
from omni_vocoder.state import StreamState


class Vocoder(Codec, VocoderModel[StreamState]):
    """Frames to samples. Nothing of it looks ahead, so each frame gives its samples at once.

    Codes beyond a codebook's last count as that: a sampler may say some that no codebook has.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        width, groups = config.hidden_size, config.upsample_groups
        upsample = nn.ConvTranspose1d(width, width, 2 * PER_FRAME, PER_FRAME, groups=groups, bias=False)
        self.upsample = CausalTransposedConv(self.layout, upsample)
        self.decoder_transformer = self._transformer()
        self.decoder = nn.ModuleDict({"layers": self._streaming(hf.MimiDecoder(config).layers)})

    @property
    def num_groups(self) -> int:
        return int(self.config.num_quantizers)

    @property
    def sample_rate(self) -> int:
        return SAMPLE_RATE

    def new_state(self, num_rows: int) -> StreamState:
        weight = self.upsample.conv.weight
        return StreamState.allocate(num_rows, self.layout.width, weight.device, weight.dtype)

    def reset(self, state: StreamState, rows_B: Tensor) -> None:
        state.reset(rows_B)

    @torch.no_grad()
    def decode(self, codes_BNG: Tensor, state: StreamState, rows_B: Tensor, first: bool) -> Tensor:
        chunk = state.load(rows_B)
        known_BGN = codes_BNG.clamp(max=self.config.codebook_size - 1).transpose(1, 2)
        x_BTD = self.upsample(self.quantizer.decode(known_BGN), chunk).transpose(1, 2)
        x_BDT = self.decoder_transformer(x_BTD, chunk).transpose(1, 2)
        wav_B1S: Tensor = self.decoder["layers"](x_BDT, chunk)
        state.store(rows_B, chunk, codes_BNG.shape[1])
        return wav_B1S.squeeze(1).clamp(-1, 1)

    def samples(self, frames: int, first: bool) -> int:
        return frames * self.samples_per_frame


def build(context: StageContext) -> Vocoder:
    """The checkpoint's codec, frames to samples, on the context's device."""
    with torch.device(context.device.torch_device):
        return Vocoder(read_config(context.checkpoint).mimi).load(context)
