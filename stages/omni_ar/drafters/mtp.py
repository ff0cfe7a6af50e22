"""Multi-token prediction (Gloeckle et al., 2024, arXiv:2404.19737) by a head in the stage's own checkpoint, in the sequential form
of Liu et al., 2024, arXiv:2412.19437: one layer more, over the stage's final hidden state and the embedding of the token after
it.

Shape legend: as in `omni_ar.drafters.model`; D width of the stage, which is that of the features.
"""

from collections.abc import Mapping
from typing import Unpack

import msgspec
import torch
from torch import Tensor, nn

from omni.checkpoint import Checkpoint, load_weights
from omni.errors import CheckpointError, ConfigError
from omni.stage import module_bytes
from omni_ar.drafters.base import CacheShape, DraftSetup, FeatureShape
from omni_ar.drafters.heads import StageVocabulary, errors_of
from omni_ar.drafters.model import DraftModel, ModelDrafter
from omni_ar.layers import Attention, DecoderConfig, Linear, RMSNorm, RotaryEmbedding
from omni_ar.layers.decoder import decoder_layer
from omni_ar.layers.linear import FactoryKwargs
from omni_ar.layers.text_model import TextModel
from omni_ar.model import Batch, ExpertShape, PassWeights

_LAYERS = "layers."
_LAYER = "layers.0."


class MtpArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """prefix: the prefix of the head's weight names in the stage's checkpoint."""

    prefix: str = "mtp."


class MtpHead(DraftModel):
    """config: of the head's layer, with the sizes of the stage's layers. layer_number: of the stage's final hidden states."""

    def __init__(
        self, config: DecoderConfig, layer_number: int, vocabulary: StageVocabulary, **factory: Unpack[FactoryKwargs]
    ) -> None:
        super().__init__()
        width, eps = config.width, config.rms_norm_eps
        self._config = config
        self._layer_number = layer_number
        self._vocabulary = vocabulary
        self.rotary = RotaryEmbedding(config.head_dim, config.rope_theta, scaling=config.rope_scaling)
        self.pre_fc_norm_embedding = RMSNorm(width, eps, **factory)
        self.pre_fc_norm_hidden = RMSNorm(width, eps, **factory)
        self.fc = Linear(2 * width, width, bias=False, **factory)
        self.layers = nn.ModuleList([decoder_layer(config, Attention, 0, **factory)])
        self.norm = RMSNorm(width, eps, **factory)

    @property
    def cache_shape(self) -> CacheShape:
        config = self._config
        return CacheShape(num_layers=1, num_kv_heads=config.num_kv_heads, head_dim=config.head_dim)

    @property
    def pass_weights(self) -> PassWeights:
        config, experts = self._config, None
        read = module_bytes(self) + self._vocabulary.output_bytes
        if config.num_experts and not config.dense_layers:
            size = 3 * config.width * config.expert_width * self.fc.weight.element_size()
            chosen = config.num_experts * size
            experts = ExpertShape(config.num_experts, config.top_k, chosen / (read - chosen))
        return PassWeights(read, 1, experts)

    @property
    def feature_shape(self) -> FeatureShape:
        return FeatureShape(layers=(self._layer_number,), width=self._config.width)

    def features(self, states_TX: Tensor) -> Tensor:
        return states_TX

    def forward(self, ids_T: Tensor, features_TH: Tensor | None, batch: Batch) -> Tensor:
        """Returns normalized hidden states, as the stage's."""
        assert features_TH is not None
        normed_TD = self.pre_fc_norm_embedding(self._vocabulary.embed(ids_T))
        x_TD = self.fc(torch.cat((normed_TD, self.pre_fc_norm_hidden(features_TH)), 1))
        cos, sin = self.rotary(batch.positions_PT, x_TD.dtype)
        x_TD, delta_TD = self.layers[0](x_TD, None, cos, sin, batch.cache, batch.attention, batch.backend)
        hidden_TD, _ = self.norm.add(x_TD, delta_TD)
        return hidden_TD

    def propose(self, hidden_RD: Tensor) -> Tensor:
        return self._vocabulary.logits(hidden_RD).argmax(1)


class MtpDrafter(ModelDrafter):
    """Drafts of the head in the stage's checkpoint."""

    def __init__(self, args: Mapping[str, object], setup: DraftSetup) -> None:
        """Raises ConfigError for a stage whose layers are not known, and CheckpointError for a checkpoint without such a head."""
        given = msgspec.convert(args, MtpArgs)
        super().__init__(load_head(given, setup), setup.drafts)


def load_head(args: MtpArgs, setup: DraftSetup) -> MtpHead:
    """The head on the stage's device, weights loaded; random ones for load format `"dummy"`."""
    context, model = setup.context, setup.model
    if not isinstance(model, TextModel):
        problem = f"is 'mtp', and {type(model).__name__} is not a `TextModel`, which gives the head's layer its sizes"
        raise ConfigError(f"{context.stage.name}.drafter", problem, "leave it out, or use another drafter")
    config, last = model.decoder_config, model.decoder_config.num_layers - 1
    dense = last in config.dense_layers
    if context.load_format != "dummy":
        with errors_of(f"{context.stage.name}.drafter"):
            _check_weights(context.checkpoint, args.prefix)
        dense = context.checkpoint.has(f"{args.prefix}{_LAYER}mlp.gate_proj.weight")
    config = msgspec.structs.replace(config, attention_windows=(), dense_layers=(0,) if dense else ())
    vocabulary = StageVocabulary(model, context.dtype)
    head = MtpHead(config, last + 1, vocabulary, device=context.device.torch_device, dtype=context.dtype)
    with errors_of(f"{context.stage.name}.drafter"):
        load_weights(head, context, {args.prefix: ""})
    return head


def _check_weights(checkpoint: Checkpoint, prefix: str) -> None:
    """Raises CheckpointError for a checkpoint without a head, or with one of several layers."""
    if not checkpoint.has(f"{prefix}fc.weight"):
        problem = (
            f"is not among the weights in {checkpoint.path}: this checkpoint has no head for multi-token prediction"
        )
        raise CheckpointError(f"{prefix}fc.weight", problem, "use another drafter, or a checkpoint with such a head")
    for name in checkpoint.names():
        if name.startswith(prefix + _LAYERS) and not name.startswith(prefix + _LAYER):
            raise CheckpointError(name, "belongs to a second layer", "use a checkpoint whose head has one layer")
