"""JSON files of a checkpoint folder. Limits keep the time to read and process them to seconds."""

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from omni.checkpoint.regular_file import is_file, read_bytes
from omni.errors import CheckpointError
from omni.utils.struct_types import STRUCT_TYPES

MAX_BYTES = 2**24
"""Bytes of a configuration file: 16 MiB. Published ones have at most 1 MiB."""
MAX_TABLE_BYTES = 2**26
"""Bytes of a file that lists weights or tokens: 64 MiB."""
MAX_VALUES = 200_000
"""Values in a configuration file: numbers, strings, tables and lists. Published ones have at most 50,000."""
MAX_DEPTH = 32
"""Nesting depth of tables and lists."""
_AGAIN = "download the file again"
_Kind = TypeVar("_Kind")


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises CheckpointError if the file is missing, too large, not JSON, or not an object."""
    value = read_as(path, Any, MAX_BYTES)
    if not isinstance(value, dict):
        raise CheckpointError(path.name, f"holds a JSON {type(value).__name__}, not an object", _AGAIN)
    _check_size(value, path.name)
    return value


def read_optional_object(path: Path) -> dict[str, Any]:
    """As `read_object`, or an empty dict if there is no such file."""
    return read_object(path) if is_file(path) else {}


def read_as(path: Path, kind: type[_Kind], most: int) -> _Kind:
    """The file's JSON as the msgspec type `kind`. Raises CheckpointError if the file is missing, larger than `most` bytes, not
    JSON, or not a `kind`."""
    if not is_file(path):
        raise CheckpointError(path.name, f"is missing from {path.parent}", "give a folder with a complete checkpoint")
    content = read_bytes(path, most)
    try:
        with STRUCT_TYPES:
            return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        raise wrong_field(path.name, error, _AGAIN) from error
    except msgspec.DecodeError as error:
        raise CheckpointError(path.name, f"is not valid JSON ({error})", _AGAIN) from error
    except RecursionError as error:
        raise CheckpointError(path.name, "nests tables and lists without end", _AGAIN) from error


def wrong_field(file: str, error: msgspec.ValidationError, remedy: str) -> CheckpointError:
    # "Expected `int`, got `str` - at `$.parts[3].size`"
    problem, _, place = str(error).partition(" - at `$")
    field = place.rstrip("`").lstrip(".")
    return CheckpointError(f"{file}: {field}" if field else file, problem, remedy)


def _check_size(value: dict[str, Any], file: str) -> None:
    count, level = 0, [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for each in level:
            entries = each.values() if isinstance(each, dict) else each
            count += len(entries)
            inner += [entry for entry in entries if isinstance(entry, dict | list)]
        if count > MAX_VALUES:
            raise CheckpointError(file, f"holds more than {MAX_VALUES:,} values", _AGAIN)
        if not inner:
            return
        level = inner
    raise CheckpointError(file, f"nests tables and lists more than {MAX_DEPTH} deep", _AGAIN)
