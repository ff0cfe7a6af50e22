"""config.json as transformers reads it."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import transformers
from transformers import PreTrainedConfig

from omni.errors import CheckpointError, shortened
from omni.utils.docstrings import docstrings_skipped
from omni.utils.quiet import quiet

_FIELD = re.compile(r"Validation error for field '([^']+)'")


def config_class(name: str) -> type[PreTrainedConfig]:
    """A config class of transformers, by its name; without the generated part of its docstring, if this is its first import."""
    with docstrings_skipped(transformers):
        found: type[PreTrainedConfig] = getattr(transformers, name)
    return found


def parse_config(kind: type[PreTrainedConfig], raw: Mapping[str, Any], family: str) -> Any:
    """An object of `kind`, with its defaults for fields that `raw` lacks. family: its name in errors. Raises CheckpointError."""
    try:
        with quiet():
            return kind.from_dict(dict(raw))
    except Exception as error:  # transformers raises many kinds, all of them about this one file
        raise CheckpointError(_field(str(error), raw), _problem(error), f"use a published {family} folder") from error


def _problem(error: Exception) -> str:
    # The first line of a validation error repeats the field's name.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return shortened(lines[-1] if len(lines) > 1 else f"{type(error).__name__}: {' '.join(lines)}")


def _field(message: str, raw: Mapping[str, Any]) -> str:
    """The full path of the field that a validation error concerns. The message has only the last part of that path and
    the value; where several fields share that part, the value identifies the field."""
    found = _FIELD.search(message)
    if found is None:
        return "config.json"
    places = [(place, value) for place, value in _places(raw, "") if place.rpartition(".")[2] == found[1]]
    shows = [place for place, value in places if repr(value) in message]
    return f"config.json: {shortened((shows or [place for place, _ in places] or [found[1]])[0])}"


def _places(table: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        place = f"{path}.{name}" if path else name
        yield place, value
        if isinstance(value, dict):
            yield from _places(value, place)
