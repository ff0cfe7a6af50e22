"""The vocoder: codec frames in, sound out. Shape legend: B rows, N frames, G code groups, D width, S samples."""

import math

import torch
from torch import Tensor, nn

from omni.stage import StageContext
from omni_ar.loading import load_weights
from omni_vocoder.layers import CausalConv, CausalTransposedConv, Residual, Serial
from omni_vocoder.model import VocoderModel
from omni_vocoder.state import StateLayout, StreamState
from plain_tts.config import TtsConfig, read_config


class Vocoder(VocoderModel[StreamState]):
    """Causal convolutions: each frame gives its samples at once, from what is carried of those before."""

    def __init__(self, config: TtsConfig) -> None:
        super().__init__()
        self._config, width = config, config.vocoder.width
        self.layout = layout = StateLayout()
        self.tables = nn.ModuleList(nn.Embedding(config.codebook_size, width) for _ in range(config.num_groups))
        layers: list[nn.Module] = [CausalConv(layout, nn.Conv1d(width, width, 7))]
        for rate in config.vocoder.rates:
            up, width = nn.ConvTranspose1d(width, width // 2, 2 * rate, rate), width // 2
            branch = Serial([nn.ELU(), CausalConv(layout, nn.Conv1d(width, width, 3, dilation=3))])
            layers += [nn.ELU(), CausalTransposedConv(layout, up), Residual(branch, nn.Identity())]
        self.layers = Serial([*layers, nn.ELU(), CausalConv(layout, nn.Conv1d(width, 1, 7))])

    @property
    def num_groups(self) -> int:
        return self._config.num_groups

    @property
    def sample_rate(self) -> int:
        return self._config.vocoder.sample_rate

    def samples(self, frames: int, first: bool) -> int:
        return frames * math.prod(self._config.vocoder.rates)

    def new_state(self, num_rows: int) -> StreamState:
        weight = next(self.parameters())
        return StreamState.allocate(num_rows, self.layout.width, weight.device, weight.dtype)

    def reset(self, state: StreamState, rows_B: Tensor) -> None:
        state.reset(rows_B)

    def decode(self, codes_BNG: Tensor, state: StreamState, rows_B: Tensor, first: bool) -> Tensor:
        chunk = state.load(rows_B)
        # A request may go on after the id that ends speech, which has no sound.
        known_BNG = codes_BNG.clamp(max=self._config.codebook_size - 1)
        embedded = [table(known_BNG[:, :, group]) for group, table in enumerate(self.tables)]
        wav_B1S: Tensor = self.layers(torch.stack(embedded).sum(0).transpose(1, 2), chunk)
        state.store(rows_B, chunk, codes_BNG.shape[1])
        return wav_B1S.squeeze(1).clamp(-1, 1)


def build(context: StageContext) -> Vocoder:
    with torch.device(context.device.torch_device):
        model = Vocoder(read_config(context.checkpoint)).to(context.dtype)
    load_weights(model, context, {"vocoder.": ""})
    return model
