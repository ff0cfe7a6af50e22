"""A published checkpoint folder, by a user's name of a model."""

from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from omni.checkpoint.json_file import read_object, read_optional_object
from omni.checkpoint.limits import check_counts
from omni.checkpoint.regular_file import check_folder
from omni.checkpoint.shards import Shard, WeightSpan, locate_weights
from omni.errors import CheckpointError

_TEXTS = ["*.json", "*.jinja", "*.txt", "*.model"]
_WEIGHTS = ["*.safetensors"]


def resolve(model: str | Path, *, weights: bool = True, download: bool = True, files: Sequence[str] = ()) -> Path:
    """The folder of `model`: a local folder, or the id of a repository on the Hugging Face hub, downloaded if necessary. Raises
    CheckpointError if `model` is neither.

    weights: False downloads no weights. download: False uses only local files. files: names or patterns of further files to
    download.
    """
    folder = Path(model).expanduser()
    # An empty name would be the current folder.
    if folder.is_dir() and model != "":
        return folder
    if folder.is_file():
        raise CheckpointError("model", f"{model} is a file", "give the folder that holds it")
    may_be_id = isinstance(model, str) and model and not model.startswith((".", "/", "~")) and not model.endswith("/")
    if isinstance(model, Path) or not may_be_id or model.count("/") > 1:
        remedy = "give a checkpoint folder or a hub id (owner/name)"
        raise CheckpointError("model", f"there is no folder {model}", remedy)
    # An engine's process, which gets a folder, starts without: the client of the hub takes half a second of CPU time to import.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        wanted = [*_TEXTS, *(_WEIGHTS if weights else ()), *files]
        return Path(snapshot_download(model, allow_patterns=wanted, local_files_only=not download))
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        problem = f"{model} is not a local folder, and the hub gave no such checkpoint ({reason})"
        remedy = "check the spelling and the network; for a private repository, log in with `hf auth login`"
        raise CheckpointError("model", problem, remedy) from error


class Checkpoint:
    """A folder with config.json and safetensors files; random weights need none of the latter. path: the folder. config:
    config.json, with its counts checked. generation_config: generation_config.json, `{}` if there is none.

    The constructor reads the configuration; weights are read on first use. Not thread-safe. The constructor and every method raise
    CheckpointError, which names the faulty file or weight.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        check_folder(self._path)
        self._config: dict[str, Any] = read_object(self._path / "config.json")
        check_counts(self._config)
        self._generation_config: dict[str, Any] = read_optional_object(self._path / "generation_config.json")
        self.reads = 0
        """Number of accesses to weights or to the folder. It reveals a model that was built without weights."""
        self.config_reads = 0
        """Number of accesses to the configuration. It reveals a fault that no value of it can have caused."""
        self._shards: dict[Path, Shard] = {}

    @property
    def config(self) -> dict[str, Any]:
        self.config_reads += 1
        return self._config

    @property
    def generation_config(self) -> dict[str, Any]:
        self.config_reads += 1
        return self._generation_config

    @property
    def path(self) -> Path:
        self.reads += 1
        return self._path

    @property
    def has_weights(self) -> bool:
        """Whether the folder holds safetensors."""
        return any(self._path.glob("*.safetensors"))

    def names(self) -> Collection[str]:
        return self._files.keys()

    def has(self, name: str) -> bool:
        return name in self._files

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a weight, from its file's header."""
        return self._shard(name).spans[name].shape

    def tensor(self, name: str) -> torch.Tensor:
        """A weight as published, in its own dtype, on the host. It maps the file, so treat it as read-only."""
        self.reads += 1
        return self._shard(name).tensor(name)

    def equal(self, first: str, second: str) -> bool:
        one, other = self.tensor(first), self.tensor(second)
        return one.dtype == other.dtype and torch.equal(one, other)

    def spans(self, names: Collection[str]) -> list[tuple[str, WeightSpan]]:
        """The spans of the weights `names`, file by file, in byte order."""
        self.reads += 1
        spans = [(name, self._shard(name).spans[name]) for name in names]
        return sorted(spans, key=lambda item: (item[1].path, item[1].start))

    @cached_property
    def _files(self) -> dict[str, Path]:
        return locate_weights(self._path)

    def _shard(self, name: str) -> Shard:
        if name not in self._files:
            problem = f"is not among the {len(self._files)} weights in {self._path}"
            raise CheckpointError(name, problem, "use a checkpoint of the architecture that config.json names")
        path = self._files[name]
        if path not in self._shards:
            self._shards[path] = Shard(path, frozenset(n for n, file in self._files.items() if file == path))
        return self._shards[path]
