"""The thinker: a dense decoder with M-RoPE. The talker reads the hidden state and input embedding of every token."""

import torch
from torch import Tensor

from omni.stage import StageContext
from omni_ar.layers.text_model import TextModel, decoder_shape
from omni_ar.model import ArShape, Batch
from omni_qwen2_5_omni.config import OmniConfig, read_config


class Thinker(TextModel):
    """Multimodal embeddings: `audio` and `image`, tensor `embeddings` `[n, D]`.

    Payload: each token's part of the talker's input, the final hidden state plus, except for media, its embedding.
    """

    def __init__(self, config: OmniConfig, *, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(config.thinker, config.thinker_vocab_size, tied=config.tied, device=device, dtype=dtype)
        self._speaks = config.talker is not None

    @property
    def shape(self) -> ArShape:
        return decoder_shape(
            self._config,
            self.lm_head.out_features,
            payload_width=self._config.width if self._speaks else 0,
            emits_tokens=self._speaks,
            forward_embeddings=("audio", "image") if self._speaks else (),
        )

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        hidden_TD = super().forward(x_TD, batch)
        if batch.payload is not None:
            payload_TD = hidden_TD + x_TD
            for embedding in batch.embeddings:
                tokens_n = embedding.tokens_n + batch.prompt_start
                payload_TD.index_copy_(0, tokens_n, hidden_TD.index_select(0, tokens_n))
            batch.payload.store(payload_TD)
        return hidden_TD


def build(context: StageContext) -> Thinker:
    """The checkpoint's thinker on the context's device."""
    model = Thinker(read_config(context.checkpoint), device=context.device.torch_device, dtype=context.dtype)
    model.load(context, "thinker.")
    return model
