"""The JSON files of a tiny checkpoint."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from omni.errors import ConfigError

ShapeT = TypeVar("ShapeT", bound=msgspec.Struct)
_LARGEST_PICTURE = 64
"""Context length in tokens, shorter than published so that a tiny model stays fast."""


def tiny_shape(kind: type[ShapeT], fields: Mapping[str, object]) -> ShapeT:
    """The sizes from a user's fields. Raises ConfigError for a field that `kind` lacks or a value of a wrong type."""
    try:
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
    """Writes a JSON file, replacing an existing one."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
