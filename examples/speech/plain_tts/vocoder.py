"""The vocoder: codec frames in, sound out.

Shape legend: B rows, N frames, G code groups, D width, S samples.
"""

import torch
from torch import Tensor, nn

from omni.checkpoint import load_weights
from omni.stage import StageContext
from omni_vocoder.layers import CausalConv, CausalTransposedConv, Residual, Serial, UpsamplingRates
from omni_vocoder.state import StreamChunk
from omni_vocoder.streaming import StreamingVocoder
from plain_tts.config import TtsConfig, read_config


class Vocoder(StreamingVocoder):
    """Causal convolutions: each frame gives its samples at once, from state of those before."""

    def __init__(self, config: TtsConfig) -> None:
        own, rates = config.vocoder, UpsamplingRates(config.vocoder.rates)
        super().__init__(num_groups=config.num_groups, sample_rate=own.sample_rate, rates=rates)
        codes, layout, width = config.codebook_size, self.layout, own.width
        self._last_code = codes - 1
        self.tables = nn.ModuleList(nn.Embedding(codes, width) for _ in range(config.num_groups))
        layers: list[nn.Module] = [CausalConv(layout, nn.Conv1d(width, width, 7))]
        for rate in own.rates:
            up, width = nn.ConvTranspose1d(width, width // 2, 2 * rate, rate), width // 2
            branch = Serial([nn.ELU(), CausalConv(layout, nn.Conv1d(width, width, 3, dilation=3))])
            layers += [nn.ELU(), CausalTransposedConv(layout, up), Residual(branch, nn.Identity())]
        self.layers = Serial([*layers, nn.ELU(), CausalConv(layout, nn.Conv1d(width, 1, 7))])

    def waveform(self, codes_BGN: Tensor, chunk: StreamChunk) -> Tensor:
        # A request may go on after the id that ends speech, which has no sound.
        known_BGN = codes_BGN.clamp(max=self._last_code)
        embedded = [table(known_BGN[:, group]) for group, table in enumerate(self.tables)]
        wav_B1S: Tensor = self.layers(torch.stack(embedded).sum(0).transpose(1, 2), chunk)
        return wav_B1S


def build(context: StageContext) -> Vocoder:
    with torch.device(context.device.torch_device):
        model = Vocoder(read_config(context.checkpoint)).to(context.dtype)
    load_weights(model, context, {"vocoder.": ""})
    return model
