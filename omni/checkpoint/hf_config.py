"""config.json as transformers reads it."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from transformers import PreTrainedConfig

from omni.checkpoint.checkpoint import Checkpoint
from omni.errors import CheckpointError
from omni.quiet import quiet

_Config = TypeVar("_Config")


def once_per_config(read: Callable[[dict[str, Any]], _Config]) -> Callable[[Checkpoint], _Config]:
    """Makes what reads a config.json take the checkpoint. Every stage asks: it is read again only if the file changed."""

    @lru_cache(maxsize=4)
    def parse(config_json: bytes) -> _Config:
        return read(msgspec.json.decode(config_json))

    def read_config(checkpoint: Checkpoint) -> _Config:
        return parse(msgspec.json.encode(checkpoint.config))

    read_config.__doc__ = read.__doc__
    return read_config


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


def check_index(field: str, value: int, size: int) -> None:
    """Raises CheckpointError, naming `field`, for a number that lies outside what it indexes: at a step it would be too late to
    say so. field: the file, and where in it. size: of what it indexes."""
    if not 0 <= value < size:
        problem = f"{value} is out of range, 0 to {size - 1}"
        raise CheckpointError(field, problem, "use the file that belongs to these weights")
