"""EAGLE-3 heads (Li et al., 2025, arXiv:2503.01840): one decoder layer over three hidden states of the stage and the embedding of
the token after them, with a vocabulary of its own, the most frequent ids.

Shape legend: as in `omni_ar.drafters.model`; D width of the head, which is that of its features; V ids of its vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Unpack

import msgspec
import torch
from torch import Tensor, nn

from omni.checkpoint import Checkpoint, load_weights
from omni.checkpoint.checks import RESTORE_FILE
from omni.errors import CheckpointError, ConfigError
from omni.stage import module_bytes
from omni_ar.drafters.base import CacheShape, DraftSetup, FeatureShape
from omni_ar.drafters.eagle3_config import OTHER_HEAD, HeadConfig, check_layers, chosen_layers, read_config
from omni_ar.drafters.heads import StageVocabulary, errors_of
from omni_ar.drafters.model import DraftModel, ModelDrafter
from omni_ar.drafters.pickled import head_checkpoint
from omni_ar.drafters.vocabulary import check_tables, table_of
from omni_ar.layers import (
    Attention,
    DecoderConfig,
    Linear,
    RMSNorm,
    RotaryEmbedding,
    StackedLinear,
    residual_sum,
)
from omni_ar.layers.decoder import decoder_layer
from omni_ar.layers.linear import FactoryKwargs
from omni_ar.model import Batch, PassWeights

_MODEL = "model."
"""Prefix of some published weight names."""
_PLACES = {"midlayer.": "midlayer.", "layers.0.": "midlayer."} | {
    f"{part}.": f"{part}." for part in ("fc", "norm", "lm_head", "embed_tokens")
}
"""The module of the head for each prefix of weight names."""
_TARGETS = "d2t"
_TABLES = (_TARGETS, "t2d")
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Types of weights that are not quantized."""


class Eagle3Args(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """model: folder or name of the head's checkpoint. layers: numbers of the hidden states it reads, as `ArOptions.hidden_layers`;
    None for those of its config.json."""

    model: str
    layers: tuple[int, ...] | None = None


class Eagle3Layer(nn.Module):
    """Attention over embeddings and features side by side, then feed-forward, both added to the features."""

    def __init__(self, config: DecoderConfig, *, norm_before_residual: bool, **factory: Unpack[FactoryKwargs]) -> None:
        """norm_before_residual: as in `HeadConfig`."""
        super().__init__()
        layer = decoder_layer(config, Attention, 0, **factory)
        self.self_attn, self.mlp = layer.self_attn, layer.mlp
        parts, bias = self.self_attn.qkv_proj.parts, config.attention_bias
        self.self_attn.qkv_proj = StackedLinear(2 * config.width, parts, bias=bias, **factory)
        self.input_layernorm, self.post_attention_layernorm = layer.input_layernorm, layer.post_attention_layernorm
        self.hidden_norm = RMSNorm(config.width, config.rms_norm_eps, **factory)
        self._norm_before_residual = norm_before_residual

    def forward(self, embedded_TD: Tensor, features_TD: Tensor, *attention: object) -> Tensor:
        """Returns the layer's output, `[T, D]`. attention: arguments of `self_attn` after the output of `qkv_proj`."""
        normed_TD = self.hidden_norm(features_TD)
        x_TD = normed_TD if self._norm_before_residual else features_TD
        qkv_TX = self.self_attn.qkv_proj(torch.cat((self.input_layernorm(embedded_TD), normed_TD), 1))
        attended_TD = self.self_attn(qkv_TX, *attention)
        delta_TD, x_TD = self.mlp.fused_mlp(self.post_attention_layernorm, x_TD, attended_TD)
        return residual_sum(x_TD, delta_TD)


class Eagle3Head(DraftModel):
    """layers: numbers of the hidden states it reads. vocabulary: for the parts without weights of the head's own."""

    def __init__(
        self,
        config: HeadConfig,
        layers: tuple[int, ...],
        own: "_OwnWeights",
        vocabulary: StageVocabulary,
        **factory: Unpack[FactoryKwargs],
    ) -> None:
        super().__init__()
        decoder = self._decoder = config.decoder
        self._layers = layers
        self._vocabulary = vocabulary
        self.rotary = RotaryEmbedding(decoder.head_dim, decoder.rope_theta, scaling=decoder.rope_scaling)
        self.fc = Linear(len(layers) * config.target_width, decoder.width, bias=False, **factory)
        self.midlayer = Eagle3Layer(decoder, norm_before_residual=config.norm_before_residual, **factory)
        self.norm = RMSNorm(decoder.width, decoder.rms_norm_eps, **factory)
        self.embed_tokens = nn.Embedding(config.vocab_size, decoder.width, **factory) if own.embedding else None
        self.lm_head = Linear(decoder.width, config.draft_size, bias=False, **factory) if own.output else None
        if own.tied and self.lm_head is not None and self.embed_tokens is not None:
            self.lm_head.weight = self.embed_tokens.weight
        self.targets_V: Tensor | None
        targets_V = own.targets_V.to(self.fc.weight.device) if own.targets_V is not None else None
        self.register_buffer("targets_V", targets_V, persistent=False)

    @property
    def cache_shape(self) -> CacheShape:
        return CacheShape(num_layers=1, num_kv_heads=self._decoder.num_kv_heads, head_dim=self._decoder.head_dim)

    @property
    def pass_weights(self) -> PassWeights:
        read = module_bytes(self)
        if self.embed_tokens is not None and (
            self.lm_head is None or self.lm_head.weight is not self.embed_tokens.weight
        ):
            read -= self.embed_tokens.weight.nbytes
        return PassWeights(read + (self._vocabulary.output_bytes if self.lm_head is None else 0), 1)

    @property
    def feature_shape(self) -> FeatureShape:
        return FeatureShape(layers=self._layers, width=self._decoder.width)

    @property
    def max_positions(self) -> int:
        """Published heads often have fewer than the stage."""
        return self._decoder.max_positions

    def features(self, states_TX: Tensor) -> Tensor:
        features_TD: Tensor = self.fc(states_TX)
        return features_TD

    def forward(self, ids_T: Tensor, features_TH: Tensor | None, batch: Batch) -> Tensor:
        """Returns hidden states before the final norm, as features of further entries are."""
        assert features_TH is not None
        if self.embed_tokens is not None:
            # The stage may pad the vocabulary further than the head, and a request may have any of its ids.
            embedded_TD = self.embed_tokens(ids_T.clamp(max=self.embed_tokens.num_embeddings - 1))
        else:
            embedded_TD = self._vocabulary.embed(ids_T)
        cos, sin = self.rotary(batch.positions_PT, features_TH.dtype)
        hidden_TD: Tensor = self.midlayer(
            embedded_TD, features_TH, cos, sin, batch.cache, batch.attention, batch.backend
        )
        return hidden_TD

    def propose(self, hidden_RD: Tensor) -> Tensor:
        normed_RD = self.norm(hidden_RD)
        logits_RV = self.lm_head(normed_RD) if self.lm_head is not None else self._vocabulary.logits(normed_RD)
        if self.targets_V is None:
            # Ids after those of the stage pad the vocabulary.
            logits_RV = logits_RV[:, : self._vocabulary.size]
        ids_R: Tensor = logits_RV.argmax(1)
        return ids_R if self.targets_V is None else self.targets_V[ids_R]


class Eagle3Drafter(ModelDrafter):
    """Drafts of an EAGLE-3 head in a checkpoint of its own."""

    def __init__(self, args: Mapping[str, object], setup: DraftSetup) -> None:
        """Raises ConfigError for a head that does not fit the stage, and CheckpointError for one that is not supported."""
        given = msgspec.convert(args, Eagle3Args)
        super().__init__(load_head(given, setup), setup.drafts)


def load_head(args: Eagle3Args, setup: DraftSetup) -> Eagle3Head:
    """The head on the stage's device, weights loaded; random ones for load format `"dummy"`."""
    context, num_layers = setup.context, setup.model.shape.num_layers
    dummy, field = context.load_format == "dummy", f"{context.stage.name}.drafter_args"
    if args.layers is not None:
        check_layers(args.layers, num_layers, f"{field}.layers")
    with errors_of(f"{field}.model"), head_checkpoint(args.model, weights=not dummy) as checkpoint:
        config = read_config(checkpoint.config)
        layers = args.layers if args.layers is not None else chosen_layers(checkpoint.config, num_layers)
        _check_vocabulary(checkpoint, config, setup, f"{field}.model")
        own = _OwnWeights.random(config, setup) if dummy else _OwnWeights.of(checkpoint, config, setup.vocab_size)
        _check_width(config, own, setup, f"{field}.model")
        if args.layers is not None and not dummy:
            _check_count(args.layers, checkpoint, config, f"{field}.layers")
        factory: FactoryKwargs = {"device": context.device.torch_device, "dtype": context.dtype}
        head = Eagle3Head(config, layers, own, StageVocabulary(setup.model, context.dtype), **factory)
        load_weights(head, replace(context, checkpoint=checkpoint), {} if dummy else _prefixes(checkpoint))
    return head


def _check_vocabulary(checkpoint: Checkpoint, config: HeadConfig, setup: DraftSetup, field: str) -> None:
    """Raises ConfigError for other ids than the stage's. Heads are mostly published without a tokenizer: then a smaller vocabulary
    fits if it has all ids of the stage's tokenizer, since the stage has further ones as padding only."""
    if check_tables(field, checkpoint, config.vocab_size, setup) or config.vocab_size == setup.vocab_size:
        return
    table = table_of(setup.context.checkpoint)
    problem = f"has a vocabulary of {config.vocab_size:,} ids, and the stage one of {setup.vocab_size:,}"
    if config.vocab_size < setup.vocab_size and table:
        highest = max(table.values())
        if highest < config.vocab_size:
            return
        problem += f", of which its tokenizer has those up to {highest:,}"
    raise ConfigError(field, problem, _trained_for(setup))


def _trained_for(setup: DraftSetup) -> str:
    return f"use a head that was trained for the model of stage {setup.context.stage.name!r}"


def _check_width(config: HeadConfig, own: "_OwnWeights", setup: DraftSetup, field: str) -> None:
    """Raises ConfigError for another width than the stage's."""
    shape, remedy = setup.model.shape, _trained_for(setup)
    if config.target_width != shape.hidden_width:
        problem = (
            f"reads hidden states of width {config.target_width:,}, and those of the stage have {shape.hidden_width:,}"
        )
        raise ConfigError(field, problem, remedy)
    for shared, what, width in (
        (not own.embedding, "embedding table", shape.input_width or shape.hidden_width),
        (not own.output, "output matrix", shape.hidden_width),
    ):
        if shared and config.decoder.width != width:
            problem = f"has no {what} and a width of {config.decoder.width:,}, and the stage's has {width:,}"
            raise ConfigError(field, problem, remedy)


def _check_count(layers: tuple[int, ...], checkpoint: Checkpoint, config: HeadConfig, field: str) -> None:
    """Raises ConfigError if the number of hidden states does not match the input of `fc`."""
    name = next((name for name in ("fc.weight", f"{_MODEL}fc.weight") if checkpoint.has(name)), None)
    reads, rest = divmod(checkpoint.shape(name)[1], config.target_width) if name is not None else (len(layers), 0)
    # A width that is no multiple is refused with the weight.
    if reads != len(layers) and not rest:
        raise ConfigError(field, f"are {len(layers)} hidden states, and the head reads {reads}", "give as many")


@dataclass(frozen=True, slots=True)
class _OwnWeights:
    """The parts that a head has itself. The stage's parts replace the others. tied: whether its output matrix is its embedding
    table. targets_V: int64 on the host, the stage's id of each id of the head; None if they are equal."""

    embedding: bool
    output: bool
    tied: bool = False
    targets_V: Tensor | None = None

    @classmethod
    def random(cls, config: HeadConfig, setup: DraftSetup) -> "_OwnWeights":
        shape = setup.model.shape
        return cls(embedding=config.decoder.width != (shape.input_width or shape.hidden_width), output=True)

    @classmethod
    def of(cls, checkpoint: Checkpoint, config: HeadConfig, stage_size: int) -> "_OwnWeights":
        """stage_size: number of the stage's ids. Raises CheckpointError for weights that no head of one layer has, for quantized
        ones, and for ids that cannot be the stage's."""
        published = {name.removeprefix(_MODEL): name for name in checkpoint.names()}
        for local, name in published.items():
            if local not in _TABLES and not local.startswith(tuple(_PLACES)):
                raise CheckpointError(name, "is not a weight of a supported EAGLE-3 head", OTHER_HEAD)
        for name, span in checkpoint.spans([name for local, name in published.items() if local not in _TABLES]):
            if span.dtype not in _DTYPES:
                problem = f"is {str(span.dtype).removeprefix('torch.')}: quantized weights are not supported"
                raise CheckpointError(name, problem, "use a head with weights in bfloat16, float16 or float32")
        embedding, output = "embed_tokens.weight" in published, "lm_head.weight" in published
        needed = () if config.draft_size == config.vocab_size else ("lm_head.weight", _TARGETS)
        for local in needed:
            if local not in published:
                problem = f"is missing, and the head has {config.draft_size:,} of {config.vocab_size:,} ids"
                raise CheckpointError(local, problem, RESTORE_FILE)
        tied = embedding and not output and bool(checkpoint.config.get("tie_word_embeddings"))
        targets_V = _targets(checkpoint, published[_TARGETS], config, stage_size) if _TARGETS in published else None
        return cls(embedding=embedding, output=output or tied, tied=tied, targets_V=targets_V)


def _targets(checkpoint: Checkpoint, name: str, config: HeadConfig, stage_size: int) -> Tensor:
    offsets_V = checkpoint.tensor(name)
    whole = not offsets_V.is_floating_point() and offsets_V.dtype != torch.bool
    if tuple(offsets_V.shape) != (config.draft_size,) or not whole:
        problem = f"is {list(offsets_V.shape)} of {offsets_V.dtype}, not {config.draft_size} whole numbers"
        raise CheckpointError(name, problem, RESTORE_FILE)
    targets_V = offsets_V.long() + torch.arange(config.draft_size, device="cpu")
    most = min(config.vocab_size, stage_size)
    wrong_V = (targets_V < 0) | (targets_V >= most)
    if wrong_V.any():
        first = int(wrong_V.nonzero()[0])
        problem = f"maps id {first} to {int(targets_V[first])}, out of range, 0 to {most - 1}"
        raise CheckpointError(name, problem, RESTORE_FILE)
    return targets_V


def _prefixes(checkpoint: Checkpoint) -> dict[str, str]:
    """The prefixes of the checkpoint's weights, for `load_weights`."""
    places = {start + published: place for start in ("", _MODEL) for published, place in _PLACES.items()}
    names = checkpoint.names()
    return {prefix: place for prefix, place in places.items() if any(name.startswith(prefix) for name in names)}
