"""The talker: text tokens and media hidden states in, codec frames out."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from omni.checkpoint import load_weights
from omni.stage import StageContext
from omni_ar.layers import Projection
from omni_ar.layers.codec_talker import CodecTalker
from omni_ar.model import ArShape, NextTokens, PromptTokens
from omni_qwen3_omni.config import TalkerConfig, read_config
from omni_qwen3_omni.talker_prompt import NO_CODE


class Talker(CodecTalker):
    """Prompt columns: text id and codec id (`NO_CODE` for none) of each position, whose embeddings are added.

    Multimodal embedding `hidden`: thinker hidden states `[n, thinker width]` in place of text ids. Step column: the text id of the
    step. Every text id is embedded by the thinker's own table, then projected.
    """

    def __init__(self, config: TalkerConfig, *, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(
            config.decoder,
            config.predictor,
            vocab_size=config.vocab_size,
            codes=config.predictor_vocab_size,
            num_groups=config.num_groups,
            device=device,
            dtype=dtype,
        )
        width, inner = config.decoder.width, config.projection_width
        self.thinker_embed = nn.Embedding(config.thinker_vocab_size, config.thinker_width, device=device, dtype=dtype)
        self.text_projection = Projection(config.thinker_width, inner, width, device=device, dtype=dtype)
        self.hidden_projection = Projection(config.thinker_width, inner, width, device=device, dtype=dtype)

    @property
    def shape(self) -> ArShape:
        return replace(super().shape, prompt_columns=("text", "codec"), step_columns=("text",))

    def embed_prompt(self, prompt: PromptTokens) -> Tensor:
        text_T, codec_T = prompt.columns_CT.unbind(0)
        x_TD = self._text(text_T)
        for embedding in prompt.embeddings:
            x_TD.index_copy_(0, embedding.tokens_n, self.hidden_projection(embedding.tensors["hidden"]))
        codec_TD = self.codec_embedding(codec_T.clamp(min=0))
        embedded_TD: Tensor = x_TD + codec_TD * (codec_T != NO_CODE)[:, None]
        return embedded_TD

    def embed_next(self, step: NextTokens) -> Tensor:
        return step.codes_RD + self._text(step.columns_SR[0])

    def _text(self, ids: Tensor) -> Tensor:
        projected: Tensor = self.text_projection(self.thinker_embed(ids))
        return projected


def build(context: StageContext) -> Talker:
    """The checkpoint's talker on the context's device."""
    config = read_config(context.checkpoint).talker
    assert config is not None, "a pipeline without audio has no talker stage"
    model = Talker(config, device=context.device.torch_device, dtype=context.dtype)
    prefixes = {
        "talker.model.codec_embedding.": "codec_embedding.",
        "talker.code_predictor.": "code_predictor.",
        "talker.model.": "decoder.",
        "talker.": "",
        "thinker.model.embed_tokens.": "thinker_embed.",
    }
    load_weights(model, context, prefixes)
    return model
