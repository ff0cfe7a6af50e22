"""Code2wav as a vocoder stage's model."""

import torch
from torch import Tensor

from omni.stage import StageContext
from omni_ar.loading import load_weights
from omni_qwen3_omni.code2wav import Code2WavConfig, StreamingCode2Wav
from omni_qwen3_omni.config import read_config
from omni_vocoder.model import VocoderModel
from omni_vocoder.state import StreamState


class Vocoder(VocoderModel[StreamState]):
    """The streaming code2wav, on the device and in the dtype its parameters have."""

    def __init__(self, net: StreamingCode2Wav) -> None:
        super().__init__()
        self.net = net

    @property
    def num_groups(self) -> int:
        return self.net.config.num_quantizers

    @property
    def sample_rate(self) -> int:
        return self.net.sample_rate

    @property
    def min_first_frames(self) -> int:
        return self.net.min_first_frames

    def new_state(self, num_rows: int) -> StreamState:
        weight = self.net.code_embedding.weight
        return self.net.new_state(num_rows, weight.device, weight.dtype)

    def reset(self, state: StreamState, rows_B: Tensor) -> None:
        self.net.reset(state, rows_B)

    def decode(self, codes_BNG: Tensor, state: StreamState, rows_B: Tensor, first: bool) -> Tensor:
        wav_BS: Tensor = self.net(codes_BNG.transpose(1, 2), state, rows_B, first)
        return wav_BS

    def samples(self, frames: int, first: bool) -> int:
        return frames * self.net.samples_per_frame - (self.net.lookahead if first else 0)


def build(context: StageContext) -> Vocoder:
    """The checkpoint's vocoder on the context's device."""
    config = Code2WavConfig.from_checkpoint(read_config(context.checkpoint).code2wav)
    with torch.device(context.device.torch_device):
        net = StreamingCode2Wav(config).to(context.dtype)
    load_weights(net, context, {"code2wav.": ""})
    return Vocoder(net)
