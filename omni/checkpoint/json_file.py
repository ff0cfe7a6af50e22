"""JSON of a checkpoint folder, within bounds that make reading it, and what libraries do with it, a matter of seconds."""

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from omni.checkpoint.regular_file import is_file, read_bytes
from omni.errors import CheckpointError

MAX_BYTES = 2**24
"""Of a file that says how a model is built: 16 MiB. Published ones have 1 MiB at most."""
MAX_TABLE_BYTES = 2**26
"""Of a file that lists weights or tokens: 64 MiB."""
MAX_VALUES = 200_000
"""Of a file that says how a model is built: numbers, texts, tables and lists. Published ones have 50,000 at most."""
MAX_DEPTH = 32
"""Tables and lists within each other."""
_AGAIN = "download the file again"
_Kind = TypeVar("_Kind")


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`.

    Raises CheckpointError if the file is missing, is no JSON, is too large, or holds something else.
    """
    value = read_as(path, Any, MAX_BYTES)
    if not isinstance(value, dict):
        raise CheckpointError(path.name, f"holds a JSON {type(value).__name__}, not an object", _AGAIN)
    _check_size(value, path.name)
    return value


def read_optional_object(path: Path) -> dict[str, Any]:
    """As `read_object`, or an empty dict if there is no such file."""
    return read_object(path) if is_file(path) else {}


def read_as(path: Path, kind: type[_Kind], most: int) -> _Kind:
    """What the file holds, as a `kind` of msgspec. most: bytes.

    Raises CheckpointError if the file is missing, is no JSON, or holds something else; and for more than `most` bytes.
    """
    if not is_file(path):
        raise CheckpointError(path.name, f"is missing from {path.parent}", "give a folder with a complete checkpoint")
    content = read_bytes(path, most)
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$")
        where = place.rstrip("`").lstrip(".")
        raise CheckpointError(f"{path.name}: {where}" if where else path.name, problem, _AGAIN) from error
    except msgspec.DecodeError as error:
        raise CheckpointError(path.name, f"is not valid JSON ({error})", _AGAIN) from error
    except RecursionError as error:
        raise CheckpointError(path.name, "nests tables and lists without end", _AGAIN) from error


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
