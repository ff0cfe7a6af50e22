"""The sizes and the JSON files of tiny checkpoints."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from omni.errors import ConfigError
from omni.utils.struct_types import STRUCT_TYPES

ShapeT = TypeVar("ShapeT", bound=msgspec.Struct)
_LARGEST_PICTURE = 64
"""Context length in tokens, shorter than published so that a tiny model stays fast."""


def tiny_shape(kind: type[ShapeT], fields: Mapping[str, object]) -> ShapeT:
    """The sizes from a user's fields. Raises ConfigError for a field that `kind` lacks or a value of a wrong type."""
    try:
        with STRUCT_TYPES:
            return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        known = ", ".join(kind.__struct_fields__)
        raise ConfigError("tiny", str(error), f"the fields are {known}") from error


def decoder_settings(
    layers: int, heads: int, kv_heads: int, head_dim: int, width: int, max_positions: int
) -> dict[str, Any]:
    """The fields of a config for a stack of decoder layers, in transformers' terms."""
    return {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "max_position_embeddings": max_positions,
        "rope_theta": 10000,
    }


def mrope_section(head_dim: int, spatial: int) -> list[int]:
    """The division of a head's frequencies over time, height and width. spatial: of height, and of width, out of 64."""
    each = head_dim // 2 * spatial // 64
    return [head_dim // 2 - 2 * each, each, each]


def write_preprocessor(folder: Path, images: Any, audio: Any, **names: str) -> None:
    """Writes preprocessor_config.json for 1 to 64 tokens a picture. images, audio: processors. names: of classes."""
    pixels = (images.patch_size * images.merge_size) ** 2
    limits = {"min_pixels": pixels, "max_pixels": _LARGEST_PICTURE * pixels}
    size = {"shortest_edge": limits["min_pixels"], "longest_edge": limits["max_pixels"]}
    values = images.to_dict() | audio.to_dict() | limits | {"size": size} | names
    write_json(folder / "preprocessor_config.json", values)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


class SpeakingShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of a text model with vision and audio inputs and a talker; families add their own. talker: False selects the layout of
    a text-only checkpoint. stop_gain, codec_stop_gain: relative likelihood of stop tokens in text model and talker; 0 for never, 1
    as any other token."""

    layers: int = 3
    heads: int = 4
    kv_heads: int = 2
    hidden_size: int = 64
    max_positions: int = 4096
    stop_gain: float = 1.0
    vision_layers: int = 3
    vision_heads: int = 2
    vision_hidden_size: int = 32
    audio_layers: int = 2
    audio_heads: int = 2
    audio_hidden_size: int = 32
    talker: bool = True
    talker_layers: int = 2
    talker_heads: int = 3
    talker_kv_heads: int = 1
    talker_head_dim: int = 16
    talker_hidden_size: int = 48
    codec_stop_gain: float = 1.3

    def text_settings(self, head_dim: int, spatial: int) -> dict[str, Any]:
        """The config fields of the text model's layers. spatial: as for `mrope_section`."""
        layers = (self.layers, self.heads, self.kv_heads, head_dim, self.hidden_size)
        return decoder_settings(*layers, self.max_positions) | _mrope(head_dim, spatial)

    def talker_settings(self, spatial: int) -> dict[str, Any]:
        layers = (self.talker_layers, self.talker_heads, self.talker_kv_heads, self.talker_head_dim)
        settings = decoder_settings(*layers, self.talker_hidden_size, self.max_positions)
        return settings | _mrope(self.talker_head_dim, spatial)

    def vision_settings(self) -> dict[str, Any]:
        return {
            "depth": self.vision_layers,
            "num_heads": self.vision_heads,
            "hidden_size": self.vision_hidden_size,
            "intermediate_size": 2 * self.vision_hidden_size,
            "out_hidden_size": self.hidden_size,
        }

    def audio_settings(self) -> dict[str, Any]:
        return {
            "encoder_layers": self.audio_layers,
            "encoder_attention_heads": self.audio_heads,
            "encoder_ffn_dim": 2 * self.audio_hidden_size,
            "d_model": self.audio_hidden_size,
            "output_dim": self.hidden_size,
        }


def _mrope(head_dim: int, spatial: int) -> dict[str, Any]:
    return {"rope_scaling": {"rope_type": "default", "mrope_section": mrope_section(head_dim, spatial)}}
