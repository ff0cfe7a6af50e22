"""config.json of families that transformers lacks: the family's struct declares the fields."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from omni.checkpoint.checks import RESTORE_CONFIG
from omni.checkpoint.json_file import wrong_field
from omni.utils.struct_types import STRUCT_TYPES

_Config = TypeVar("_Config", bound=msgspec.Struct)


def typed_config(kind: type[_Config], raw: Mapping[str, Any]) -> _Config:
    """`raw` as a `kind`, whose annotations declare valid values (`Annotated[int, msgspec.Meta(ge=1)]`). Other fields are ignored.
    Raises CheckpointError for a field that is missing, of another type or out of range."""
    try:
        with STRUCT_TYPES:
            return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise wrong_field("config.json", error, RESTORE_CONFIG) from error
