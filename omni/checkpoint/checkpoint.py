"""A published checkpoint folder."""

from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from omni.checkpoint.json_file import read_object, read_optional_object
from omni.checkpoint.limits import check_counts
from omni.checkpoint.regular_file import check_folder
from omni.checkpoint.shards import Shard, locate_weights
from omni.checkpoint.spans import WeightSpan
from omni.errors import CheckpointError


class Checkpoint:
    """A folder with config.json and, unless only random weights are wanted, safetensors files.

    path: the folder.
    config: config.json, whose counts are checked. generation_config: generation_config.json, `{}` if there is none.

    The configuration is read at once, weights when first asked for. Not for use by several threads at a time.
    Every method, and the constructor, raises CheckpointError that names the file or the weight at fault.
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
        """A weight as published: its own dtype, on the host, read-only in spirit (its memory maps the file)."""
        return self._shard(name).tensor(name)

    def equal(self, first: str, second: str) -> bool:
        """Whether two weights are the same values of one dtype. Reads both."""
        one, other = self.tensor(first), self.tensor(second)
        return one.dtype == other.dtype and torch.equal(one, other)

    def spans(self, names: Collection[str]) -> list[tuple[str, WeightSpan]]:
        """Where the weights `names` lie, file by file and in the order of their bytes."""
        spans = [(name, self._shard(name).spans[name]) for name in names]
        return sorted(spans, key=lambda item: (item[1].path, item[1].start))

    @cached_property
    def _files(self) -> dict[str, Path]:
        return locate_weights(self.path)

    def _file_of(self, name: str) -> Path:
        if name not in self._files:
            problem = f"is not among the {len(self._files)} weights in {self.path}"
            raise CheckpointError(name, problem, "use a checkpoint of the architecture that config.json names")
        return self._files[name]

    def _shard(self, name: str) -> Shard:
        path = self._file_of(name)
        if path not in self._shards:
            self._shards[path] = Shard(path, frozenset(n for n, file in self._files.items() if file == path))
        return self._shards[path]
