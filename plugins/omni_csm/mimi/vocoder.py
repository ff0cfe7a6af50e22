"""Mimi's decoder as a vocoder stage's model. Shapes: B rows, N frames, G codes of each, T positions at a layer's rate."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.mimi import modeling_mimi as hf

from omni.stage import StageContext
from omni_csm.config import PER_FRAME, SAMPLE_RATE, read_config
from omni_csm.mimi.codec import load, streaming, transformer
from omni_vocoder.layers import CausalTransposedConv, UpsamplingRates, WindowShape
from omni_vocoder.state import StreamChunk
from omni_vocoder.streaming import StreamingVocoder


class Vocoder(StreamingVocoder):
    """Turns frames into samples. No layer looks ahead, so each frame gives all its samples.

    Codes beyond a codebook's last one are replaced by it: a sampler may draw ids that no codebook has. config: a
    `MimiConfig`.
    """

    def __init__(self, config: Any, window: WindowShape) -> None:
        rates = UpsamplingRates((PER_FRAME, *config.upsampling_ratios))
        super().__init__(num_groups=config.num_quantizers, sample_rate=SAMPLE_RATE, rates=rates)
        width, groups = config.hidden_size, config.upsample_groups
        upsample = nn.ConvTranspose1d(width, width, 2 * PER_FRAME, PER_FRAME, groups=groups, bias=False)
        self._last_code: int = config.codebook_size - 1
        self.quantizer: Any = hf.MimiSplitResidualVectorQuantizer(config)
        self.upsample = CausalTransposedConv(self.layout, upsample)
        self.decoder_transformer = transformer(self.layout, config, window)
        self.decoder = nn.ModuleDict({"layers": streaming(self.layout, hf.MimiDecoder(config).layers)})

    def waveform(self, codes_BGN: Tensor, chunk: StreamChunk) -> Tensor:
        latents_BDN = self.quantizer.decode(codes_BGN.clamp(max=self._last_code))
        x_BTD = self.upsample(latents_BDN, chunk).transpose(1, 2)
        x_BDT = self.decoder_transformer(x_BTD, chunk).transpose(1, 2)
        wav_B1S: Tensor = self.decoder["layers"](x_BDT, chunk)
        return wav_B1S


def build(context: StageContext) -> Vocoder:
    """The checkpoint's codec, frames to samples, on the context's device."""
    config = read_config(context.checkpoint)
    with torch.device(context.device.torch_device):
        return load(Vocoder(config.mimi, config.mimi_window), context)
