"""The position of each weight in a safetensors file, from the file's header."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from omni.checkpoint.regular_file import reading
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
    """The bytes `start` to `stop` of a file."""

    path: Path
    start: int
    stop: int
    dtype: torch.dtype
    shape: tuple[int, ...]


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
