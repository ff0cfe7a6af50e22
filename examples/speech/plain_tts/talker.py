"""The talker: text in, codec frames out. Shape legend: T tokens, D width."""

import torch
from torch import Tensor, nn

from omni.checkpoint import load_weights
from omni.stage import StageContext
from omni_ar.layers.codec_talker import CodecTalker
from omni_ar.model import PromptTokens
from plain_tts.config import TtsConfig, read_config


class Talker(CodecTalker):
    """A prompt is text. A token is the first code of a frame, or the end."""

    def __init__(self, config: TtsConfig, *, device: torch.device, dtype: torch.dtype) -> None:
        layers = config.decoder(config.talker)
        super().__init__(
            layers,
            config.decoder(config.code_predictor),
            vocab_size=config.codebook_size + 1,
            codes=config.codebook_size,
            num_groups=config.num_groups,
            device=device,
            dtype=dtype,
        )
        ids = config.text_vocab_size
        self.embed_text = nn.Embedding(ids, layers.width, device=device, dtype=dtype)

    def embed_prompt(self, prompt: PromptTokens) -> Tensor:
        x_TD: Tensor = self.embed_text(prompt.columns_CT[0])
        return x_TD


def build(context: StageContext) -> Talker:
    config, device = read_config(context.checkpoint), context.device.torch_device
    model = Talker(config, device=device, dtype=context.dtype)
    embedding = "talker.model.embed_tokens."
    prefixes = {embedding: "embed_text.", "talker.model.": "decoder.", "talker.": ""}
    load_weights(model, context, prefixes)
    return model
