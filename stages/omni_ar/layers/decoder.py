"""A stack of pre-norm decoder layers: rotary attention, then a feed-forward network or experts."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, Unpack

import msgspec
import torch
from torch import Tensor, nn

from omni.checkpoint import MissingLayer
from omni.checkpoint.checks import Section
from omni.errors import CheckpointError, quoted
from omni_ar.attention import AttentionFeatures
from omni_ar.kernels.norm import Delta, residual_sum
from omni_ar.layers.attention import Attention, AttentionProjections
from omni_ar.layers.linear import FactoryKwargs, GatedMLP, RMSNorm
from omni_ar.layers.moe import SharedExpertMoE, SparseMoE
from omni_ar.layers.parallel import held_layers
from omni_ar.layers.rotary import FrequencyScaling, RotaryEmbedding
from omni_ar.model import ArModel, Batch

MOST_EXPERTS = 8192
"""Maximum experts that the kernels can distinguish."""
_FEWEST_POSITIONS = 16
"""Minimum positions: a chat of fewer would not fit with its control tokens."""


class DecoderConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shape of a stack. num_experts: 0 for a dense model. dense_layers: layers that keep a plain feed-forward in a model with
    experts. qk_norm: whether each query and key head is normalized. rope_scaling: None for plain rotary positions.
    shared_expert_width: 0 for none. mrope_section: None for one-axis rotary positions. mrope_interleaved: as in `RotaryEmbedding`.
    attention_bias: of the four projections; without `output_bias`, of queries, keys and values only. attention_windows: the window
    of each layer, None for full attention; empty if no layer has one. attention_scale, attention_softcap: as in
    `AttentionFeatures`. attention_sinks: whether each layer has them."""

    width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_width: int
    max_positions: int
    rope_theta: float
    rms_norm_eps: float
    attention_bias: bool = False
    output_bias: bool = True
    attention_windows: tuple[int | None, ...] = ()
    attention_scale: float | None = None
    attention_softcap: float | None = None
    attention_sinks: bool = False
    qk_norm: bool = True
    rope_scaling: FrequencyScaling | None = None
    mrope_section: tuple[int, ...] | None = None
    mrope_interleaved: bool = True
    num_experts: int = 0
    top_k: int = 0
    norm_topk: bool = True
    expert_width: int = 0
    shared_expert_width: int = 0
    dense_layers: tuple[int, ...] = ()

    @property
    def special_attention(self) -> bool:
        """Whether any layer has `AttentionFeatures`."""
        scores = (self.attention_scale, self.attention_softcap)
        return bool(self.attention_windows) or self.attention_sinks or scores != (None, None)


def decoder_config(hf: Any, path: str = "", *, reads_chats: bool = False) -> DecoderConfig:
    """Reads a transformers text config with rotary positions, dense or mixture of experts. path: its path in
    config.json. reads_chats: whether it must have positions for the shortest chat.

    The config does not contain `qk_norm` and `attention_sinks`. Raises CheckpointError, naming the field, for values that are
    impossible for such a stack, unknown scaling of rotary positions, layers whose attention is neither full nor within a window,
    an activation other than SiLU, and experts that no token can reach.
    """
    raw = hf.to_dict()
    config = Section(raw, path)
    _check_widths(config)
    config.require_counts("max_position_embeddings", least=_FEWEST_POSITIONS if reads_chats else 1, most=2**62)
    rope = config.part("rope_parameters")
    rope.require_numbers("rope_theta")
    head_dim = raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"]
    config.require(head_dim % 2 == 0, "head_dim", f"is {head_dim}, an odd number: rotary dimensions turn in pairs")
    experts = raw.get("num_experts") or raw.get("num_local_experts") or 0
    if experts:
        _check_experts(config, experts)
    sparse_step, mlp_only = raw.get("decoder_sparse_step", 1), raw.get("mlp_only_layers") or []
    layers, section = raw["num_hidden_layers"], rope.get("mrope_section")
    if section is not None:
        rope.require_list("mrope_section", 3, 3)
        rope.require_counts("mrope_section", least=0)
        problem = f"is {quoted(section)}, three numbers that do not sum to half of head_dim, {head_dim // 2}"
        rope.require(sum(section) == head_dim // 2, "mrope_section", problem)
    return DecoderConfig(
        width=raw["hidden_size"],
        num_layers=layers,
        num_heads=raw["num_attention_heads"],
        num_kv_heads=raw["num_key_value_heads"],
        head_dim=head_dim,
        mlp_width=raw["intermediate_size"],
        max_positions=raw["max_position_embeddings"],
        rope_theta=float(rope["rope_theta"]),
        rms_norm_eps=raw["rms_norm_eps"],
        attention_bias=raw.get("attention_bias", False),
        attention_windows=attention_windows(config),
        **_scores(config),
        rope_scaling=_rope_scaling(rope),
        mrope_section=tuple(section) if section is not None else None,
        num_experts=experts,
        top_k=raw.get("num_experts_per_tok") or 0,
        norm_topk=raw.get("norm_topk_prob", True),
        expert_width=raw.get("moe_intermediate_size") or 0,
        dense_layers=tuple(i for i in range(layers) if i in mlp_only or (i + 1) % sparse_step),
    )


def _check_widths(config: Section) -> None:
    config.require_counts("hidden_size", "intermediate_size")
    config.require_counts("num_hidden_layers", most=1024)
    config.require_multiple("num_attention_heads", of="num_key_value_heads")
    if config.get("head_dim") is not None:
        config.require_counts("head_dim", most=2**14)
    config.require_numbers("rms_norm_eps", most=1.0)
    act = config["hidden_act"]
    if act != "silu":
        raise CheckpointError(config.field("hidden_act"), f"{quoted(act)} is not supported", "use a model with silu")


def _check_experts(config: Section, experts: int) -> None:
    top_k = config.get("num_experts_per_tok") or 0
    if not 1 <= top_k <= experts <= MOST_EXPERTS:
        problem = f"is {quoted(top_k)} of {quoted(experts)} experts"
        remedy = f"use at least 1 and at most all of them, of which there may be {MOST_EXPERTS:,}"
        raise CheckpointError(config.field("num_experts_per_tok"), problem, remedy)
    config.require_counts("moe_intermediate_size")
    if config.get("decoder_sparse_step") is not None:
        config.require_counts("decoder_sparse_step", most=2**62)


def attention_windows(config: Section) -> tuple[int | None, ...]:
    """The window of each layer: `sliding_window` for the layers that `layer_types` selects, or for all layers without
    `layer_types`. Empty if no layer has one, as without `use_sliding_window` where the config has that field, or with a window that
    holds every position.

    Raises CheckpointError, naming the field, for an impossible window and for other types of attention.
    """
    layers, window, types = config["num_hidden_layers"], config.get("sliding_window"), config.get("layer_types")
    if types is not None:
        config.require_list("layer_types", layers, layers)
        for index, kind in enumerate(types):
            if kind not in ("full_attention", "sliding_attention"):
                problem, remedy = f"{quoted(kind)} is not supported", "use a model with full or sliding attention"
                raise CheckpointError(config.field("layer_types", str(index)), problem, remedy)
    slides = [types is None or kind == "sliding_attention" for kind in types or [None] * layers]
    if config.get("use_sliding_window") is False or (window is None and types is None) or not any(slides):
        return ()
    config.require_counts("sliding_window", most=2**62)
    return tuple(window if slide else None for slide in slides) if window < config["max_position_embeddings"] else ()


def _scores(config: Section) -> dict[str, Any]:
    scores: dict[str, Any] = {}
    if config.get("attn_logit_softcapping") is not None:
        config.require_numbers("attn_logit_softcapping")
        scores["attention_softcap"] = config["attn_logit_softcapping"]
    if config.get("query_pre_attn_scalar") is not None:
        config.require_numbers("query_pre_attn_scalar")
        scores["attention_scale"] = config["query_pre_attn_scalar"] ** -0.5
    return scores


def _rope_scaling(rope: Section) -> FrequencyScaling | None:
    match rope.get("rope_type") or "default":
        case "default":
            return None
        case "llama3":
            rope.require_numbers("factor", "low_freq_factor")
            rope.require_numbers("high_freq_factor", above=rope["low_freq_factor"])
            rope.require_counts("original_max_position_embeddings", most=2**62)
            return FrequencyScaling(
                factor=rope["factor"],
                slow_turns=rope["low_freq_factor"],
                fast_turns=rope["high_freq_factor"],
                trained_positions=rope["original_max_position_embeddings"],
            )
        case other:
            remedy = 'use a model with "default" or "llama3"'
            raise CheckpointError(rope.field("rope_type"), f"{quoted(other)} is not supported", remedy)


class FeedForward(Protocol):
    def fused_mlp(self, norm: RMSNorm, x_TD: Tensor, delta_TD: Delta | None) -> tuple[Delta, Tensor]:
        """Adds `delta_TD` to the residual stream `[T, D]`, then applies norm and MLP. Returns the output and the stream."""


class DecoderLayer(nn.Module):
    """Attention, then feed-forward, each on normalized input and added to the residual stream. An addition is fused with the norm
    that follows it, so the next layer performs a layer's last addition."""

    def __init__(
        self,
        self_attn: AttentionProjections,
        mlp: FeedForward,
        *,
        width: int,
        norm_eps: float,
        **factory: Unpack[FactoryKwargs],
    ) -> None:
        super().__init__()
        self.self_attn = self_attn
        self.mlp = mlp
        self.input_layernorm = RMSNorm(width, norm_eps, **factory)
        self.post_attention_layernorm = RMSNorm(width, norm_eps, **factory)

    def forward(self, x_TD: Tensor, delta_TD: Delta | None, *attention: object) -> tuple[Tensor, Delta]:
        """Maps the residual stream `[T, D]` and its pending addition, from the previous layer, to those of this layer. delta_TD:
        `[T, D]`, possibly in parts, which `residual_sum` adds up; None for none. attention: arguments of `self_attn` after the
        output of `qkv_proj`."""
        qkv_TX, x_TD = self.input_layernorm.norm_linear(self.self_attn.qkv_proj, x_TD, delta_TD)
        attended_TD = self.self_attn(qkv_TX, *attention)
        delta_TD, x_TD = self.mlp.fused_mlp(self.post_attention_layernorm, x_TD, attended_TD)
        return x_TD, delta_TD


LayerFeatures = Mapping[int, Sequence[tuple[Tensor, Tensor]]]
"""Vectors to add to the residual stream before each of these layers, or before the final norm: int64 `[n]`, indexes of the batch's
tokens, and `[n, D]`."""
_NO_FEATURES: LayerFeatures = MappingProxyType({})


class DecoderLayers(nn.Module):
    """Layers and the final norm. Parameter names below it: `layers.N...`, `norm.weight`. In a partition it holds the layers of a
    layer range, `held`; the others are absent, as is the norm without the last layer.

    payload_layer: the layer whose input `forward` stores as payload; None for none. Models store final states themselves."""

    def __init__(
        self, config: DecoderConfig, *, payload_layer: int | None = None, **factory: Unpack[FactoryKwargs]
    ) -> None:
        super().__init__()
        rotary = (config.head_dim, config.rope_theta, config.mrope_section, config.rope_scaling)
        self.rotary = RotaryEmbedding(*rotary, interleaved=config.mrope_interleaved)
        self.width = config.width
        self.payload_layer = payload_layer
        self.held = held_layers(config.num_layers)
        self.layers = nn.ModuleList(
            decoder_layer(config, Attention, index, cache_layer=index - self.held.start, **factory)
            if index in self.held
            else MissingLayer()
            for index in range(config.num_layers)
        )
        self.norm = RMSNorm(config.width, config.rms_norm_eps, **factory) if self.holds_last else MissingLayer()

    @property
    def holds_last(self) -> bool:
        return self.held.stop == len(self.layers)

    def forward(self, x_TD: Tensor, batch: Batch, features: LayerFeatures = _NO_FEATURES) -> Tensor:
        """Returns normalized hidden states `[T, D]` for input embeddings `[T, D]`; without the last layer, unused values. Stores
        the inputs of layers that `batch` and `payload_layer` ask for, before features are added."""
        cos, sin = self.rotary(batch.positions_PT, x_TD.dtype)
        boundary = batch.boundary
        delta_TD: Delta | None = None
        if boundary is not None and boundary.received is not None:
            if self.holds_last and self._stores(0, batch):
                self._store(0, x_TD, batch)
            for state_TD, layer in zip(boundary.received[1:], boundary.received_layers, strict=True):
                self._store(layer, state_TD, batch)
            x_TD = boundary.received[0]
        for index in self.held:
            x_TD, delta_TD = self._before(index, x_TD, delta_TD, batch, features)
            x_TD, delta_TD = self.layers[index](x_TD, delta_TD, cos, sin, batch.cache, batch.attention, batch.backend)
        if not self.holds_last:
            assert boundary is not None
            assert boundary.sent is not None
            assert delta_TD is not None
            boundary.sent[0].copy_(residual_sum(x_TD, delta_TD))
            # New memory: models may change the result in place, and the original is still being sent.
            return torch.empty_like(boundary.sent[0])
        x_TD, delta_TD = self._before(len(self.layers), x_TD, delta_TD, batch, features)
        assert isinstance(self.norm, RMSNorm)
        hidden_TD, _ = self.norm.add(x_TD, delta_TD)
        if batch.layers is not None:
            batch.layers.store(len(self.layers), hidden_TD)
        return hidden_TD

    def carried(self, kept: Sequence[int], layer: int) -> tuple[int, ...]:
        """The layers before `layer` whose inputs the last rank stores and cannot compute itself. kept: as `LayerSink.layers`. Every
        rank has the input of layer 0, the embeddings."""
        stored = {*kept, *(() if self.payload_layer is None else (self.payload_layer,))}
        return tuple(sorted(one for one in stored if 0 < one < layer))

    def _before(
        self, index: int, x_TD: Tensor, delta_TD: Delta | None, batch: Batch, features: LayerFeatures
    ) -> tuple[Tensor, Delta | None]:
        """Stores the input of a layer, and adds its features. The pending addition is performed only where the stream is read."""
        stores, added = index < len(self.layers) and self._stores(index, batch), features.get(index, ())
        if not stores and not added:
            return x_TD, delta_TD
        if delta_TD is not None:
            x_TD = residual_sum(x_TD, delta_TD)
        if stores:
            self._store(index, x_TD, batch)
        for tokens_n, features_nD in added:
            x_TD.index_add_(0, tokens_n, features_nD.to(x_TD.dtype))
        return x_TD, None

    def _stores(self, layer: int, batch: Batch) -> bool:
        if not self.holds_last:
            return batch.boundary is not None and layer in batch.boundary.sent_layers
        kept = batch.layers is not None and batch.layers.takes(layer)
        return kept or (batch.payload is not None and layer == self.payload_layer)

    def _store(self, layer: int, x_TD: Tensor, batch: Batch) -> None:
        """Stores the input of a layer where this rank has the pages, else for the next rank."""
        if not self.holds_last:
            boundary = batch.boundary
            assert boundary is not None
            assert boundary.sent is not None
            boundary.sent[1 + boundary.sent_layers.index(layer)].copy_(x_TD)
            return
        if batch.layers is not None:
            batch.layers.store(layer, x_TD)
        if batch.payload is not None and layer == self.payload_layer:
            batch.payload.store(x_TD)


def decoder_of(model: ArModel) -> DecoderLayers:
    """The layers of a model that is divided into layer ranges."""
    (decoder,) = (module for module in model.modules() if isinstance(module, DecoderLayers))
    return decoder


def decoder_layer(
    config: DecoderConfig,
    kind: type[AttentionProjections],
    index: int,
    *,
    cache_layer: int | None = None,
    **factory: Unpack[FactoryKwargs],
) -> DecoderLayer:
    """A layer of the stack. kind: of its attention. cache_layer: its index in the KV cache, if not `index`."""
    window = config.attention_windows[index] if config.attention_windows else None
    features = AttentionFeatures(scale=config.attention_scale, softcap=config.attention_softcap, window=window)
    # Attention within a codec frame has no such arguments.
    special = {"features": features, "sinks": config.attention_sinks} if config.special_attention else {}
    attention = kind(
        config.width,
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
        qk_norm_eps=config.rms_norm_eps if config.qk_norm else None,
        bias=config.attention_bias,
        output_bias=config.output_bias,
        layer=index if cache_layer is None else cache_layer,
        **special,
        **factory,
    )
    mlp = _mlp(config, index, **factory)
    return DecoderLayer(attention, mlp, width=config.width, norm_eps=config.rms_norm_eps, **factory)


def _mlp(config: DecoderConfig, index: int, **factory: Unpack[FactoryKwargs]) -> GatedMLP | SparseMoE:
    if not config.num_experts or index in config.dense_layers:
        return GatedMLP(config.width, config.mlp_width, **factory)
    shape = (config.width, config.expert_width, config.num_experts, config.top_k, config.norm_topk)
    if config.shared_expert_width:
        return SharedExpertMoE(*shape, config.shared_expert_width, **factory)
    return SparseMoE(*shape, **factory)
