"""The vocoder: codec frames in, waveform out, in chunks of any size whose concatenation equals one whole decode."""

from functools import partial

import torch
from torch import Tensor, nn

from omni.checkpoint.hf_config import Section
from omni.stage import StageContext
from omni_ar.loading import load_weights
from omni_qwen3_omni.config import read_config
from omni_vocoder.layers import (
    GatedMLP,
    RMSNorm,
    UpsamplingRates,
    WindowTransformer,
    convnext_upsampling,
    snake_decoder,
    window_shape,
)
from omni_vocoder.state import Chunk
from omni_vocoder.streaming import StreamingVocoder


class Code2Wav(StreamingVocoder):
    """Parameters are named as in a published checkpoint below `code2wav.`, and config is that of its config.json.

    As released, 1920 samples of a frame (12.5 frames per second), and the last 555 are decided by the next frame.
    """

    def __init__(self, config: Section) -> None:
        ratios, rates, width = config["upsampling_ratios"], config["upsample_rates"], config["hidden_size"]
        steps = UpsamplingRates(tuple(ratios), tuple(rates))
        super().__init__(num_groups=config["num_quantizers"], sample_rate=24000, rates=steps)
        self.codebook_size: int = config["codebook_size"]
        self.code_embedding = nn.Embedding(self.codebook_size * self.num_groups, width)
        self.pre_transformer = WindowTransformer(
            self.layout,
            window_shape(config),
            config["num_hidden_layers"],
            norm=partial(RMSNorm, width, config["rms_norm_eps"]),
            mlp=partial(GatedMLP, width, config["intermediate_size"]),
            final_norm=True,
        )
        self.upsample = convnext_upsampling(self.layout, width, ratios)
        self.decoder = snake_decoder(self.layout, width, config["decoder_dim"], rates)

    def waveform(self, codes_BQN: Tensor, chunk: Chunk) -> Tensor:
        signal_BCT = self.pre_transformer(self._embed(codes_BQN), chunk).transpose(1, 2)
        wav_B1S: Tensor = self.decoder(self.upsample(signal_BCT, chunk), chunk)
        return wav_B1S

    def _embed(self, codes_BQN: Tensor) -> Tensor:
        """Mean over quantizers, `[B, N, D]`; each quantizer has its own stretch of the table."""
        quantizer_Q1 = torch.arange(codes_BQN.shape[1], device=codes_BQN.device).unsqueeze(1)
        embedded_BQND: Tensor = self.code_embedding(codes_BQN + quantizer_Q1 * self.codebook_size)
        return embedded_BQND.mean(1)


def build(context: StageContext) -> Code2Wav:
    """The checkpoint's vocoder on the context's device."""
    with torch.device(context.device.torch_device):
        model = Code2Wav(read_config(context.checkpoint).code2wav).to(context.dtype)
    load_weights(model, context, {"code2wav.": ""})
    return model
