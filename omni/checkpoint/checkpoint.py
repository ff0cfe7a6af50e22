"""A published checkpoint folder."""

from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from omni.checkpoint.json_file import read_object, read_optional_object
from omni.checkpoint.limits import check_counts
from omni.checkpoint.regular_file import check_folder
from omni.checkpoint.shards import Shard, WeightSpan, locate_weights
from omni.errors import CheckpointError


class Checkpoint:
    """A folder with config.json and safetensors files; random weights need none of the latter. path: the folder. config:
    config.json, with its counts checked. generation_config: generation_config.json, `{}` if there is none.

    The constructor reads the configuration; weights are read on first use. Not thread-safe. The constructor and every method raise
    CheckpointError, which names the faulty file or weight.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        check_folder(self.path)
        self.config: dict[str, Any] = read_object(self.path / "config.json")
        check_counts(self.config)
        self.generation_config: dict[str, Any] = read_optional_object(self.path / "generation_config.json")
        self._shards: dict[Path, Shard] = {}

    def names(self) -> Collection[str]:
        """The names of all weights."""
        return self._files.keys()

    def has(self, name: str) -> bool:
        return name in self._files

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a weight, from its file's header."""
        return self._shard(name).spans[name].shape

    def tensor(self, name: str) -> torch.Tensor:
        """A weight as published, in its own dtype, on the host. It maps the file, so treat it as read-only."""
        return self._shard(name).tensor(name)

    def equal(self, first: str, second: str) -> bool:
        """Whether two weights have equal dtypes and values. Reads both."""
        one, other = self.tensor(first), self.tensor(second)
        return one.dtype == other.dtype and torch.equal(one, other)

    def spans(self, names: Collection[str]) -> list[tuple[str, WeightSpan]]:
        """The spans of the weights `names`, file by file, in byte order."""
        spans = [(name, self._shard(name).spans[name]) for name in names]
        return sorted(spans, key=lambda item: (item[1].path, item[1].start))

    @cached_property
    def _files(self) -> dict[str, Path]:
        return locate_weights(self.path)

    def _shard(self, name: str) -> Shard:
        if name not in self._files:
            problem = f"is not among the {len(self._files)} weights in {self.path}"
            raise CheckpointError(name, problem, "use a checkpoint of the architecture that config.json names")
        path = self._files[name]
        if path not in self._shards:
            self._shards[path] = Shard(path, frozenset(n for n, file in self._files.items() if file == path))
        return self._shards[path]
