"""config.json of families that transformers lacks: the family's struct declares the fields."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from omni.checkpoint.checks import RESTORE_CONFIG
from omni.errors import CheckpointError

_Config = TypeVar("_Config", bound=msgspec.Struct)


def typed_config(kind: type[_Config], raw: Mapping[str, Any]) -> _Config:
    """`raw` as a `kind`, whose annotations declare valid values (`Annotated[int, msgspec.Meta(ge=1)]`). Other fields
    are ignored.

    Raises CheckpointError for a field that is missing, of another type or out of range.
    """
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$")
        field = place.rstrip("`").lstrip(".")
        where = f"config.json: {field}" if field else "config.json"
        raise CheckpointError(where, problem, RESTORE_CONFIG) from error
