"""JSON objects of a checkpoint folder."""

from pathlib import Path
from typing import Any

import msgspec

from omni.errors import CheckpointError


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises CheckpointError if the file is missing, is no JSON, or holds something else."""
    if not path.is_file():
        raise CheckpointError(path.name, f"is missing from {path.parent}", "give a folder with a complete checkpoint")
    try:
        value = msgspec.json.decode(path.read_bytes())
    except msgspec.DecodeError as error:
        raise CheckpointError(path.name, f"is not valid JSON ({error})", "download the file again") from error
    if not isinstance(value, dict):
        raise CheckpointError(
            path.name, f"holds a JSON {type(value).__name__}, not an object", "download the file again"
        )
    return value


def read_optional_object(path: Path) -> dict[str, Any]:
    """As `read_object`, or an empty dict if there is no such file."""
    return read_object(path) if path.exists() else {}
