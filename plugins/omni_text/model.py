"""A causal text model on the autoregressive stage's building blocks."""

import torch
from torch import Tensor, nn

from omni.stage import StageContext
from omni_ar.layers import DecoderLayers, Linear
from omni_ar.loading import load_weights
from omni_ar.model import ArModel, ArShape, Batch, NextTokens, PromptTokens
from omni_text.config import TextConfig, read_config


class TextModel(ArModel):
    """Token ids in, token ids out."""

    def __init__(self, config: TextConfig, *, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self._config = config
        width = config.decoder.width
        self.embed_tokens = nn.Embedding(config.vocab_size, width, device=device, dtype=dtype)
        self.decoder = DecoderLayers(config.decoder, device=device, dtype=dtype)
        self.lm_head = Linear(width, config.vocab_size, bias=False, device=device, dtype=dtype)
        if config.tied:
            self.lm_head.weight = self.embed_tokens.weight

    @property
    def shape(self) -> ArShape:
        config = self._config.decoder
        return ArShape(
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            hidden_width=config.width,
            vocab_size=self._config.vocab_size,
            max_positions=config.max_positions,
            forward_segments=(),
        )

    def embed_prompt(self, prompt: PromptTokens) -> Tensor:
        embeddings: Tensor = self.embed_tokens(prompt.columns_CT[0])
        return embeddings

    def embed_next(self, step: NextTokens) -> Tensor:
        embeddings: Tensor = self.embed_tokens(step.ids_R)
        return embeddings

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        hidden_TD: Tensor = self.decoder(x_TD, batch)
        return hidden_TD

    def logits(self, hidden_RD: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(hidden_RD)
        return logits


def build(context: StageContext) -> TextModel:
    """The checkpoint's model on the context's device."""
    config = read_config(context.checkpoint)
    model = TextModel(config, device=context.device.torch_device, dtype=context.dtype)
    prefixes = {"model.embed_tokens.": "embed_tokens.", "model.": "decoder."}
    load_weights(model, context, prefixes if config.tied else prefixes | {"lm_head.": "lm_head."})
    return model
