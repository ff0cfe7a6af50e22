"""A text model with DeepStack features of pictures, and with a payload of hidden states between its layers."""

from typing import Unpack

from torch import Tensor

from omni_ar.kernels.norm import residual_sum
from omni_ar.layers.decoder import DecoderConfig
from omni_ar.layers.linear import Factory
from omni_ar.layers.text_model import TextModel, decoder_shape
from omni_ar.model import ArShape, Batch, PayloadSink


class DeepstackModel(TextModel):
    """Features of a tower's intermediate layers are added after the first layers, level by level (DeepStack; Meng et al., 2024).

    Multimodal embeddings: tensors `embeddings` `[n, D]` and, for the names in `deepstack`, optionally `deepstack` `[levels, n, D]`.
    hidden_layer: the layer whose input is stored as payload, numbered as in published hidden states: 0 for the input embeddings,
    `num_layers` for the final normalized states. None stores none.
    """

    def __init__(
        self,
        config: DecoderConfig,
        vocab_size: int,
        *,
        deepstack: tuple[str, ...],
        hidden_layer: int | None,
        tied: bool = False,
        **factory: Unpack[Factory],
    ) -> None:
        super().__init__(config, vocab_size, tied=tied, **factory)
        self._deepstack = deepstack
        self._hidden_layer = hidden_layer

    @property
    def shape(self) -> ArShape:
        return decoder_shape(
            self._config,
            self.lm_head.out_features,
            payload_width=self._config.width if self._hidden_layer is not None else 0,
            forward_embeddings=self._deepstack,
        )

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        cos, sin = self.decoder.rotary(batch.positions_PT, x_TD.dtype)
        stacked = [embedding for embedding in batch.embeddings if "deepstack" in embedding.tensors]
        delta_TD: Tensor | None = None
        last, kept = self._config.num_layers, batch.layers
        if self._hidden_layer == 0:
            _store(batch.payload, x_TD)
        if kept is not None:
            kept.store(0, x_TD)
        for index, layer in enumerate(self.decoder.layers):
            x_TD, delta_TD = layer(x_TD, delta_TD, cos, sin, batch.cache, batch.attention, batch.backend)
            added = [embedding for embedding in stacked if index < embedding.tensors["deepstack"].shape[0]]
            stored = index + 1 == self._hidden_layer != last and batch.payload is not None
            layer_kept = kept is not None and index + 1 != last and kept.takes(index + 1)
            if stored or added or layer_kept:
                # The residual stream is read between these layers, so the pending addition is performed now.
                x_TD, delta_TD = residual_sum(x_TD, delta_TD), None
            # Published hidden states do not include the features that are added at this layer.
            if stored:
                _store(batch.payload, x_TD)
            if kept is not None and layer_kept:
                kept.store(index + 1, x_TD)
            for embedding in added:
                tokens_n = embedding.tokens_n + batch.prompt_start
                x_TD.index_add_(0, tokens_n, embedding.tensors["deepstack"][index].to(x_TD.dtype))
        hidden_TD, _ = self.decoder.norm.add(x_TD, delta_TD)
        if self._hidden_layer == last:
            _store(batch.payload, hidden_TD)
        if kept is not None:
            kept.store(last, hidden_TD)
        return hidden_TD


def _store(payload: PayloadSink | None, hidden_TD: Tensor) -> None:
    if payload is not None:
        payload.store(hidden_TD)
