"""The talker: text tokens and media hidden states in, codec frames out."""

import torch
from torch import Tensor, nn

from omni.stage import StageContext
from omni_ar.layers import DecoderLayers, Linear
from omni_ar.layers.code_predictor import CodePredictor
from omni_ar.layers.text_model import decoder_shape
from omni_ar.loading import load_weights
from omni_ar.model import ArShape, Batch, CodecModel, Codes, DrawCode, NextTokens, PromptTokens
from omni_qwen3_omni.config import TalkerConfig, read_config
from omni_qwen3_omni.talker_prompt import NO_CODE


class Projection(nn.Module):
    """From the thinker's width to the talker's: two linear maps with SiLU between."""

    def __init__(self, width: int, inner: int, out: int, *, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.linear_fc1 = Linear(width, inner, device=device, dtype=dtype)
        self.linear_fc2 = Linear(inner, out, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.linear_fc2(nn.functional.silu(self.linear_fc1(x)))
        return projected


class Talker(CodecModel):
    """Prompt columns: text id and codec id (`NO_CODE` for none) of each position, whose embeddings are added.

    Prompt segment `hidden`: thinker hidden states `[n, thinker width]` that take the text id's place. Step column: the text id of
    the step. Every text id is embedded by the thinker's own table, then projected.
    """

    def __init__(self, config: TalkerConfig, *, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self._config = config
        width, inner = config.decoder.width, config.projection_width
        self.thinker_embed = nn.Embedding(config.thinker_vocab_size, config.thinker_width, device=device, dtype=dtype)
        self.text_projection = Projection(config.thinker_width, inner, width, device=device, dtype=dtype)
        self.hidden_projection = Projection(config.thinker_width, inner, width, device=device, dtype=dtype)
        self.codec_embedding = nn.Embedding(config.vocab_size, width, device=device, dtype=dtype)
        self.decoder = DecoderLayers(config.decoder, device=device, dtype=dtype)
        self.codec_head = Linear(width, config.vocab_size, bias=False, device=device, dtype=dtype)
        # When the talker samples, the published model samples the other groups so, whatever the talker uses.
        self.code_predictor = CodePredictor(
            config.predictor,
            config.predictor_vocab_size,
            config.num_groups,
            top_k=50,
            top_p=0.8,
            device=device,
            dtype=dtype,
        )

    @property
    def shape(self) -> ArShape:
        return decoder_shape(
            self._config.decoder,
            self._config.vocab_size,
            position_axes=3,
            prompt_columns=("text", "codec"),
            step_columns=("text",),
        )

    @property
    def num_groups(self) -> int:
        return self._config.num_groups

    @property
    def next_width(self) -> int:
        return self._config.decoder.width

    def embed_prompt(self, prompt: PromptTokens) -> Tensor:
        text_T, codec_T = prompt.columns_CT.unbind(0)
        x_TD = self._text(text_T)
        for segment in prompt.segments:
            x_TD.index_copy_(0, segment.tokens_n, self.hidden_projection(segment.tensors["hidden"]))
        codec_TD = self.codec_embedding(codec_T.clamp(min=0))
        embedded_TD: Tensor = x_TD + codec_TD * (codec_T != NO_CODE)[:, None]
        return embedded_TD

    def embed_next(self, step: NextTokens) -> Tensor:
        return step.codes_RD + self._text(step.columns_SR[0])

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        hidden_TD: Tensor = self.decoder(x_TD, batch)
        return hidden_TD

    def logits(self, hidden_RD: Tensor) -> Tensor:
        logits: Tensor = self.codec_head(hidden_RD)
        return logits

    def predict_codes(self, hidden_RD: Tensor, code0_R: Tensor, draw: DrawCode) -> Codes:
        return self.code_predictor.predict(hidden_RD, code0_R, self.codec_embedding(code0_R), draw)

    def embed_codes(self, codes_RG: Tensor) -> Tensor:
        return self.code_predictor.embed(codes_RG, self.codec_embedding(codes_RG[:, 0]))

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
