"""The part of config.json that the model needs."""

from typing import Annotated, Any

import msgspec

from omni.checkpoint.cached_config import once_per_config
from omni.checkpoint.checks import Section
from omni.checkpoint.typed_config import typed_config
from omni_ar.layers import DecoderConfig

Count = Annotated[int, msgspec.Meta(ge=1)]


class PocketConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of config.json. Others are ignored."""

    vocab_size: Count
    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    num_key_value_heads: Count
    head_dim: Annotated[int, msgspec.Meta(ge=2, multiple_of=2)]
    max_position_embeddings: Count
    rope_theta: float
    rms_norm_eps: float

    @property
    def decoder(self) -> DecoderConfig:
        """The same for omni's layers."""
        return DecoderConfig(
            width=self.hidden_size,
            num_layers=self.num_hidden_layers,
            num_heads=self.num_attention_heads,
            num_kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            mlp_width=self.intermediate_size,
            max_positions=self.max_position_embeddings,
            rope_theta=self.rope_theta,
            rms_norm_eps=self.rms_norm_eps,
            qk_norm=False,
        )


@once_per_config
def read_config(raw: dict[str, Any]) -> PocketConfig:
    """Raises CheckpointError, naming the field, for a config.json that describes no such model."""
    config = typed_config(PocketConfig, raw)
    Section(raw).require_multiple("num_attention_heads", of="num_key_value_heads")
    return config
