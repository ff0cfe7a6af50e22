"""The safetensors file of each weight. Files are opened on first use."""

from collections import Counter
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from omni.checkpoint.json_file import MAX_TABLE_BYTES, read_as
from omni.checkpoint.regular_file import is_file
from omni.checkpoint.spans import check_header, read_spans
from omni.errors import CheckpointError, shortened

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_WEIGHTS = 1_000_000
"""Weights of a checkpoint. Published ones have at most 150,000."""

_OTHER_FORMATS = (".bin", ".gguf", ".pth", ".h5", ".msgpack", ".onnx")


class _Index(msgspec.Struct):
    """The fields of the index that are read."""

    weight_map: dict[str, str] = {}


class Shard:
    """One safetensors file. Only its header stays in memory. spans: the span of each weight. names: the weights' names. Raises
    CheckpointError if the file is unreadable or truncated, or lacks a weight of `expected`."""

    def __init__(self, path: Path, expected: frozenset[str]) -> None:
        self._path = path
        check_header(path)
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
    """The file of every weight in `folder`, from the index or from the header of a single file. Raises CheckpointError if there are
    no weights, the index is invalid, or a shard is missing; then it names weights of that shard."""
    if is_file(folder / INDEX):
        return _locate_indexed(folder)
    single = folder / SINGLE
    if is_file(single):
        return dict.fromkeys(sorted(Shard(single, frozenset()).names), single)
    others = sorted(file.name for file in folder.iterdir() if file.suffix in _OTHER_FORMATS)
    if others:
        problem = f"holds weights as {_some(others)}, a format that is not supported"
        raise CheckpointError("checkpoint", problem, "use a checkpoint in safetensors files, or convert it to them")
    problem = f"{folder} holds no weights: neither {INDEX} nor {SINGLE}"
    raise CheckpointError("checkpoint", problem, 'download them, or use load_format="dummy" for random weights')


def read_index(folder: Path) -> dict[str, str]:
    """The file name of every weight, from the index; all files are in the folder. Raises CheckpointError."""
    try:
        files = read_as(folder / INDEX, _Index, MAX_TABLE_BYTES).weight_map
    except CheckpointError as error:
        if not isinstance(error.__cause__, msgspec.ValidationError):
            raise
        problem = f"does not map weight names to file names ({error.problem})"
        raise CheckpointError(error.field, problem, "download the index again") from error
    if not files or len(files) > MAX_WEIGHTS:
        problem = f"names {len(files):,} weights, not 1 to {MAX_WEIGHTS:,}"
        raise CheckpointError(f"{INDEX}: weight_map", problem, "download the index again")
    for file, weight in {file: weight for weight, file in files.items()}.items():
        _check_inside(folder, file, weight)
    return files


def _check_inside(folder: Path, file: str, weight: str) -> None:
    """Raises CheckpointError for an entry of the index that leads outside the folder, also through a link. Links of the
    hub's cache, from `snapshots/REVISION` to `blobs` beside it, are allowed."""
    field = f"{INDEX}: weight_map.{shortened(weight)}"
    remedy = "put the weights into the folder, and their names into the index"
    parts = Path(file).parts
    if not parts or Path(file).is_absolute() or ".." in parts or "\0" in file:
        raise CheckpointError(field, f"{shortened(file)!r} is no file of the folder", remedy)
    if not is_file(folder / file):
        return
    here, there = folder.resolve(), (folder / file).resolve()
    homes = [here]
    # Resolve the folder too: a snapshot or the whole cache may be a link.
    for revision in (here, folder.absolute()):
        if revision.parent.name == "snapshots":
            homes.append((revision.parent.parent / "blobs").resolve())
    if not any(there.is_relative_to(home) for home in homes):
        raise CheckpointError(field, f"{shortened(file)!r} leads out of the folder, to {shortened(str(there))}", remedy)


def _locate_indexed(folder: Path) -> dict[str, Path]:
    files = read_index(folder)
    paths = {file: folder / file for file in dict.fromkeys(files.values())}
    for shard, count in Counter(files.values()).items():
        if not is_file(paths[shard]):
            some = _some([name for name, file in files.items() if file == shard])
            problem = f"is missing from {folder}; {count} weights need it: {some}"
            raise CheckpointError(shortened(shard), problem, "download the shard")
    return {name: paths[file] for name, file in files.items()}


def _some(names: list[str], limit: int = 3) -> str:
    return ", ".join(map(shortened, names[:limit])) + (f" and {len(names) - limit} more" if len(names) > limit else "")
