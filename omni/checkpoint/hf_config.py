"""config.json as transformers reads it."""

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig

from omni.errors import CheckpointError
from omni.quiet import quiet


def parse_config(kind: type[PreTrainedConfig], raw: Mapping[str, Any], family: str) -> Any:
    """An object of `kind`, with its defaults where `raw` leaves something out. family: as it is written for people to read.

    Raises CheckpointError if `raw` is no such config.
    """
    try:
        with quiet():
            return kind.from_dict(dict(raw))
    except Exception as error:  # transformers raises many kinds, all of them about this one file
        problem = f"{type(error).__name__}: {error}"
        raise CheckpointError("config.json", problem, f"use a published {family} folder") from error
