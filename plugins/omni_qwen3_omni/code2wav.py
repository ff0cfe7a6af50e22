"""The vocoder: codec frames in, waveform out, in chunks of any size whose concatenation equals one whole decode."""

from functools import partial

import torch
from torch import Tensor, nn

from omni.checkpoint import load_weights
from omni.checkpoint.checks import Section
from omni.stage import StageContext
from omni_qwen3_omni.config import read_config
from omni_vocoder.layers import (
    GatedMLP,
    RMSNorm,
    SnakeDecoder,
    UpsamplingRates,
    WindowShape,
    WindowTransformer,
    convnext_upsampling,
)
from omni_vocoder.state import StreamChunk
from omni_vocoder.streaming import StreamingVocoder


class Code2Wav(StreamingVocoder):
    """Parameters have the published names below `code2wav.`. config: of config.json. window: of attention.

    As released, a frame has 1920 samples (12.5 frames per second), and the last 555 depend on the next frame.
    """

    def __init__(self, config: Section, window: WindowShape) -> None:
        ratios, rates, width = config["upsampling_ratios"], config["upsample_rates"], config["hidden_size"]
        steps = UpsamplingRates(tuple(ratios), tuple(rates))
        super().__init__(num_groups=config["num_quantizers"], sample_rate=24000, rates=steps)
        self.codebook_size: int = config["codebook_size"]
        self.code_embedding = nn.Embedding(self.codebook_size * self.num_groups, width)
        self.pre_transformer = WindowTransformer(
            self.layout,
            window,
            config["num_hidden_layers"],
            norm=partial(RMSNorm, width, config["rms_norm_eps"]),
            mlp=partial(GatedMLP, width, config["intermediate_size"]),
            final_norm=True,
        )
        self.upsample = convnext_upsampling(self.layout, width, ratios)
        self.decoder = SnakeDecoder(self.layout, width, config["decoder_dim"], rates)

    def waveform(self, codes_BGN: Tensor, chunk: StreamChunk) -> Tensor:
        signal_BCT = self.pre_transformer(self._embed(codes_BGN), chunk).transpose(1, 2)
        wav_B1S: Tensor = self.decoder(self.upsample(signal_BCT, chunk), chunk)
        return wav_B1S

    def _embed(self, codes_BGN: Tensor) -> Tensor:
        """Mean over quantizers, `[B, N, D]`; each quantizer has its own range of the table."""
        quantizer_G1 = torch.arange(codes_BGN.shape[1], device=codes_BGN.device).unsqueeze(1)
        embedded_BGND: Tensor = self.code_embedding(codes_BGN + quantizer_G1 * self.codebook_size)
        return embedded_BGND.mean(1)


def build(context: StageContext) -> Code2Wav:
    """The checkpoint's vocoder on the context's device."""
    config = read_config(context.checkpoint)
    assert config.code2wav_window is not None
    with torch.device(context.device.torch_device):
        model = Code2Wav(config.code2wav, config.code2wav_window).to(context.dtype)
    load_weights(model, context, {"code2wav.": ""})
    return model
