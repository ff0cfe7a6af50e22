"""Which weight lies in which safetensors file, and those files, opened when first needed."""

from collections import Counter
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from omni.checkpoint.json_file import read_object
from omni.checkpoint.spans import read_spans
from omni.errors import CheckpointError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


class Shard:
    """One safetensors file. Nothing of it stays in memory but its header.

    spans: where each weight lies. names: theirs.

    Raises CheckpointError if the file cannot be read, is truncated or lacks one of the weights in `expected`.
    """

    def __init__(self, path: Path, expected: frozenset[str]) -> None:
        self._path = path
        try:
            with safe_open(path, framework="pt", device="cpu"):
                self.spans = read_spans(path)
        except (SafetensorError, OSError) as error:
            problem = f"is truncated or no safetensors file ({error})"
            raise CheckpointError(path.name, problem, "download the shard again") from error
        self.names = frozenset(self.spans)
        lacking = sorted(expected - self.names)
        if lacking:
            problem = f"lacks {_some(lacking)}, which {INDEX} says it holds"
            raise CheckpointError(path.name, problem, "download the index and the shard again, from the same revision")

    def tensor(self, name: str) -> torch.Tensor:
        with safe_open(self._path, framework="pt", device="cpu") as file:
            tensor: torch.Tensor = file.get_tensor(name)
        return tensor


def locate_weights(folder: Path) -> dict[str, Path]:
    """The file of every weight in `folder`, from the index or the single file's header.

    Raises CheckpointError if there are no weights, the index is wrong, or a shard is missing (and names weights in it).
    """
    if (folder / INDEX).exists():
        return _locate_indexed(folder)
    single = folder / SINGLE
    if single.exists():
        return dict.fromkeys(sorted(Shard(single, frozenset()).names), single)
    problem = f"{folder} holds no weights: neither {INDEX} nor {SINGLE}"
    raise CheckpointError("checkpoint", problem, 'download them, or use load_format="dummy" for random weights')


def read_index(folder: Path) -> dict[str, str]:
    """The file name of every weight, as the index has it. Raises CheckpointError."""
    try:
        return msgspec.convert(read_object(folder / INDEX).get("weight_map"), dict[str, str])
    except msgspec.ValidationError as error:
        problem = f"does not map weight names to file names ({error})"
        raise CheckpointError(f"{INDEX}: weight_map", problem, "download the index again") from error


def _locate_indexed(folder: Path) -> dict[str, Path]:
    files = read_index(folder)
    for shard, count in Counter(files.values()).items():
        if not (folder / shard).is_file():
            some = _some([name for name, file in files.items() if file == shard])
            problem = f"is missing from {folder}; {count} weights need it: {some}"
            raise CheckpointError(shard, problem, "download the shard")
    return {name: folder / file for name, file in files.items()}


def _some(names: list[str], limit: int = 3) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
