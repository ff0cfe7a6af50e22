"""The fields of config.json that towers of several families have, typed, under their published names."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from omni.checkpoint.checks import RESTORE_FILE
from omni.errors import CheckpointError

ConfigT = TypeVar("ConfigT", bound=msgspec.Struct)


class ClipTowerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Config of a tower for sound. n_window: half of a chunk, in mel frames."""

    num_mel_bins: int
    d_model: int
    encoder_layers: int
    encoder_attention_heads: int
    encoder_ffn_dim: int
    activation_function: str
    n_window: int
    output_dim: int


class RotaryParameters(msgspec.Struct, frozen=True, kw_only=True):
    """rope_theta: base of the wavelengths."""

    rope_theta: float


class PictureTowerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Config of a tower for pictures. spatial_merge_size: patches along the side of a block, which gives an embedding."""

    depth: int
    hidden_size: int
    hidden_act: str
    intermediate_size: int
    num_heads: int
    patch_size: int
    spatial_merge_size: int
    temporal_patch_size: int
    out_hidden_size: int
    rope_parameters: RotaryParameters


def tower_config(kind: type[ConfigT], config: Mapping[str, Any], path: str) -> ConfigT:
    """A tower's part of a config as a `kind`, which ignores other fields. config: the whole, checked, with defaults filled.
    path: of the part, such as `"thinker_config.audio_config"`. Raises CheckpointError for values of another type."""
    part: Any = config
    for name in path.split("."):
        part = part[name]
    try:
        return msgspec.convert(part, kind)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"config.json: {path}", str(error), RESTORE_FILE) from error
