"""The thinker: a mixture-of-experts decoder with M-RoPE and deepstack image features."""

import torch
from torch import Tensor

from omni.stage import StageContext
from omni_ar.layers import DecoderConfig, residual_sum
from omni_ar.layers.text_model import TextModel, decoder_shape
from omni_ar.model import ArShape, Batch, PayloadSink
from omni_qwen3_omni.config import read_config


class Thinker(TextModel):
    """Prompt segments: `audio` and `image`, tensors `embeddings` `[n, D]` and, for images, `deepstack` `[levels, n, D]`.

    accept_hidden_layer: the layer whose input is stored as payload; None stores none.
    """

    def __init__(
        self,
        config: DecoderConfig,
        vocab_size: int,
        accept_hidden_layer: int | None,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(config, vocab_size, tied=False, device=device, dtype=dtype)
        self._accept = accept_hidden_layer

    @property
    def shape(self) -> ArShape:
        return decoder_shape(
            self._config,
            self.lm_head.out_features,
            position_axes=3,
            payload_width=self._config.width if self._accept is not None else 0,
            forward_segments=("image",),
        )

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        cos, sin = self.decoder.rotary(batch.positions_PT, x_TD.dtype)
        images = [segment for segment in batch.segments if "deepstack" in segment.tensors]
        delta_TD: Tensor | None = None
        if self._accept == 0:
            _store(batch.payload, x_TD)
        for index, layer in enumerate(self.decoder.layers):
            x_TD, delta_TD = layer(x_TD, delta_TD, cos, sin, batch.cache, batch.attention, batch.backend)
            deepstack = [image for image in images if index < image.tensors["deepstack"].shape[0]]
            accepted = index + 1 == self._accept != self._config.num_layers and batch.payload is not None
            if accepted or deepstack:
                # Somebody looks between these layers: what the next one would add is added now.
                x_TD, delta_TD = residual_sum(x_TD, delta_TD), None
            # transformers records hidden_states[k] before layer k - 1's deepstack features are added.
            if accepted:
                _store(batch.payload, x_TD)
            for image in deepstack:
                tokens_n = image.tokens_n + batch.prompt_start
                x_TD.index_add_(0, tokens_n, image.tensors["deepstack"][index].to(x_TD.dtype))
        hidden_TD, _ = self.decoder.norm.add(x_TD, delta_TD)
        if self._accept == self._config.num_layers:
            _store(batch.payload, hidden_TD)
        return hidden_TD


def _store(payload: PayloadSink | None, hidden_TD: Tensor) -> None:
    if payload is not None:
        payload.store(hidden_TD)


def build(context: StageContext) -> Thinker:
    """The checkpoint's thinker on the context's device."""
    config = read_config(context.checkpoint)
    accept = config.talker.accept_hidden_layer if config.talker is not None else None
    device = context.device.torch_device
    model = Thinker(config.thinker, config.thinker_vocab_size, accept, device=device, dtype=context.dtype)
    model.load(context, "thinker.")
    return model
