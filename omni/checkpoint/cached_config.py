"""config.json, read once for all stages."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from omni.checkpoint.checkpoint import Checkpoint

_Config = TypeVar("_Config")


def once_per_config(read: Callable[[dict[str, Any]], _Config]) -> Callable[[Checkpoint], _Config]:
    """Makes a cached function of the checkpoint from a function of config.json. Reruns only if the file changed."""

    @lru_cache(maxsize=4)
    def parse(config_json: bytes) -> _Config:
        return read(msgspec.json.decode(config_json))

    def read_config(checkpoint: Checkpoint) -> _Config:
        return parse(msgspec.json.encode(checkpoint.config))

    read_config.__doc__ = read.__doc__
    return read_config
