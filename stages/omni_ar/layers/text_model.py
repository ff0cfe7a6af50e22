"""A complete causal text model, as a base class for families."""

from typing import Any, Unpack

import torch
from torch import Tensor, nn

from omni.checkpoint import load_weights
from omni.stage import StageContext
from omni.utils.log import safe_logger
from omni_ar.layers.decoder import DecoderConfig, DecoderLayers
from omni_ar.layers.linear import FactoryKwargs, Linear
from omni_ar.layers.parallel import head_shard, held_layers
from omni_ar.layers.vocabulary import vocab_embedding, vocab_head
from omni_ar.model import ArModel, ArShape, Batch, ExpertShape, NextTokens, PromptTokens

_log = safe_logger(__name__)


class TextModel(ArModel):
    """Token ids in, token ids out. Multimodal embeddings, in families with media: tensor `embeddings` `[n, D]` replaces the
    tokens'. tied: whether the output matrix is the embedding table, unless the checkpoint has its own. payload_layer: as in
    `DecoderLayers`."""

    def __init__(
        self,
        config: DecoderConfig,
        vocab_size: int,
        *,
        tied: bool,
        payload_layer: int | None = None,
        **factory: Unpack[FactoryKwargs],
    ) -> None:
        super().__init__()
        self._config = config
        self._tied = tied
        self.embed_tokens = vocab_embedding(vocab_size, config.width, **factory)
        self.decoder = DecoderLayers(config, payload_layer=payload_layer, **factory)
        self.lm_head = vocab_head(config.width, vocab_size, **factory)
        if tied and isinstance(self.lm_head, Linear):
            self.lm_head.weight = self.embed_tokens.weight

    @property
    def decoder_config(self) -> DecoderConfig:
        """The config of the whole model, also in a partition."""
        return self._config

    @property
    def shape(self) -> ArShape:
        return decoder_shape(self._config, self.lm_head.out_features)

    def embed_prompt(self, prompt: PromptTokens) -> Tensor:
        x_TD: Tensor = self.embed_tokens(prompt.columns_CT[0])
        for embedding in prompt.embeddings:
            x_TD.index_copy_(0, embedding.tokens_n, embedding.tensors["embeddings"].to(x_TD.dtype))
        return x_TD

    def embed_next(self, step: NextTokens) -> Tensor:
        embeddings: Tensor = self.embed_tokens(step.ids_R)
        return embeddings

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        hidden_TD: Tensor = self.decoder(x_TD, batch)
        return hidden_TD

    def logits(self, hidden_RD: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(hidden_RD)
        return logits

    def load(self, context: StageContext, prefix: str = "") -> None:
        """Loads the weights, as `load_weights` does. prefix: prefix of the weights' names, before `model.` and `lm_head.`."""
        embedding, output = f"{prefix}model.embed_tokens.", f"{prefix}lm_head."
        prefixes = {embedding: "embed_tokens.", f"{prefix}model.": "decoder."}
        if self._tied and context.load_format != "dummy":
            held = [name for name in (f"{embedding}weight", f"{output}weight") if context.checkpoint.has(name)]
            if held == [f"{output}weight"]:
                prefixes = {output: "embed_tokens."} | prefixes
            elif len(held) == 2 and not context.checkpoint.equal(*held):
                _log.warning("%s is not %s, so they are not tied, in spite of config.json", *reversed(held))
                self._tied = False
                if isinstance(self.lm_head, Linear):
                    untied = torch.empty_like(self.embed_tokens.weight)
                    self.lm_head.weight = nn.Parameter(untied, requires_grad=False)
        load_weights(self, context, prefixes if self._tied else prefixes | {output: "lm_head."})


def decoder_shape(config: DecoderConfig, vocab_size: int, **more: Any) -> ArShape:
    """The shape of a model around `DecoderLayers`; in a partition, with the keys and values of this rank. more: other fields of
    `ArShape`; without them `forward` reads no embeddings."""
    axes = 1 if config.mrope_section is None else len(config.mrope_section)
    fields: dict[str, Any] = {"forward_embeddings": (), "position_axes": axes} | more
    return ArShape(
        num_layers=config.num_layers,
        kv_layers=len(held_layers(config.num_layers)),
        num_kv_heads=head_shard(config.num_heads, config.num_kv_heads).num_kv_heads,
        head_dim=config.head_dim,
        hidden_width=config.width,
        vocab_size=vocab_size,
        max_positions=config.max_positions,
        experts=_expert_shape(config, vocab_size) if config.num_experts else None,
        **fields,
    )


def _expert_shape(config: DecoderConfig, vocab_size: int) -> ExpertShape:
    width, dense = config.width, len(config.dense_layers)
    sparse = config.num_layers - dense
    attention = 2 * width * (config.num_heads + config.num_kv_heads) * config.head_dim
    others = config.num_layers * attention + 3 * width * dense * config.mlp_width + width * vocab_size
    others += sparse * width * (3 * config.shared_expert_width + config.num_experts)
    experts = 3 * width * sparse * config.num_experts * config.expert_width
    return ExpertShape(config.num_experts, config.top_k, experts / others)
