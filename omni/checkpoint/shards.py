"""The safetensors file of each weight, and its position there, from the file's header. Files are opened on first use."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from omni.checkpoint.cut import Cut
from omni.checkpoint.json_file import MAX_TABLE_BYTES, read_as
from omni.checkpoint.regular_file import is_file, reading
from omni.errors import CheckpointError, shortened

MAX_HEADER = 2**25
"""Bytes of a file's header: 32 MiB, enough for 300,000 weights. Published ones have at most 2 MiB."""
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_LENGTH_BYTES = 8
_METADATA = "__metadata__"


@dataclass(frozen=True, slots=True)
class WeightSpan:
    """The bytes `start` to `stop` of a file: a weight. cut: the part of it that is wanted; None for all of it."""

    path: Path
    start: int
    stop: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    cut: Cut | None = None


def check_header(path: Path) -> None:
    """Raises CheckpointError if `path` is not a file, or its header is too large."""
    with reading(path) as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if MAX_HEADER < length < 2**48:
        problem = f"has a header of {length:,} bytes, above {MAX_HEADER:,}"
        raise CheckpointError(shortened(path.name), problem, "split the weights among several files")


def read_spans(path: Path) -> dict[str, WeightSpan]:
    """Spans of all weights in a file accepted by `check_header`. Raises CheckpointError for an unknown dtype."""
    with reading(path) as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        header: dict[str, Any] = msgspec.json.decode(file.read(length))
    data = _LENGTH_BYTES + length
    spans: dict[str, WeightSpan] = {}
    for name, entry in header.items():
        if name == _METADATA:
            continue
        dtype = _DTYPES.get(entry["dtype"])
        if dtype is None:
            problem = f"has dtype {shortened(entry['dtype'])} in {shortened(path.name)}"
            raise CheckpointError(shortened(name), problem, f"use a checkpoint with one of {', '.join(_DTYPES)}")
        start, stop = entry["data_offsets"]
        spans[name] = WeightSpan(path, data + start, data + stop, dtype, tuple(entry["shape"]))
    return spans


SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_WEIGHTS = 1_000_000
"""Weights of a checkpoint. Published ones have at most 150,000."""

_OTHER_FORMATS = (".bin", ".gguf", ".pth", ".h5", ".msgpack", ".onnx")


class _Index(msgspec.Struct):
    """The fields of the index that are read."""

    weight_map: dict[str, str] = {}


class Shard:
    """One safetensors file. Only its header stays in memory. spans: the span of each weight. Raises
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
        lacking = sorted(expected - self.spans.keys())
        if lacking:
            problem = f"lacks {_some(lacking)}, which {INDEX} assigns to it"
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
        return dict.fromkeys(sorted(Shard(single, frozenset()).spans), single)
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
        raise CheckpointError(field, f"{shortened(file)!r} is not a file of the folder", remedy)
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
