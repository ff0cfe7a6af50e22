"""A text model with DeepStack features of pictures, and with a payload of hidden states between its layers."""

from typing import Unpack

from torch import Tensor

from omni_ar.layers.decoder import DecoderConfig, LayerFeatures
from omni_ar.layers.linear import FactoryKwargs
from omni_ar.layers.text_model import TextModel, decoder_shape
from omni_ar.model import ArShape, Batch


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
        **factory: Unpack[FactoryKwargs],
    ) -> None:
        inner = hidden_layer if hidden_layer != config.num_layers else None
        super().__init__(config, vocab_size, tied=tied, payload_layer=inner, **factory)
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
        hidden_TD: Tensor = self.decoder(x_TD, batch, _features(batch))
        if self._hidden_layer == self._config.num_layers and batch.payload is not None:
            batch.payload.store(hidden_TD)
        return hidden_TD


def _features(batch: Batch) -> LayerFeatures:
    """Features of level L are added after layer L, before the next layer. Published hidden states do not include them there."""
    features: dict[int, list[tuple[Tensor, Tensor]]] = {}
    for embedding in batch.embeddings:
        tokens_n = embedding.tokens_n + batch.prompt_start
        for level, features_nD in enumerate(embedding.tensors.get("deepstack", ())):
            features.setdefault(level + 1, []).append((tokens_n, features_nD))
    return features
