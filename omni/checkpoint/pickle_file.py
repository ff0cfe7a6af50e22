"""Tables that `torch.save` wrote into a checkpoint folder."""

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from omni.checkpoint.checks import RESTORE_FILE, require_index
from omni.checkpoint.regular_file import is_file, open_file
from omni.errors import CheckpointError

MAX_BYTES = 2**26
"""Bytes of a file's contents, uncompressed: 64 MiB. Published ones have 0.3 MiB."""
MAX_PICKLE = 2**22
"""Bytes of the pickle, which takes about one step of Python per byte. Tensors' values are outside of it."""

_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class Table:
    """Named entries, in order: tensors on the CPU, numbers, strings and nested tables. Every method raises CheckpointError, naming
    file and entry, if the entry is missing or of another type."""

    def __init__(self, field: str, entries: object, what: str = "entries") -> None:
        """field, what: names in errors, of the table and of its entries."""
        if not isinstance(entries, dict) or not entries:
            raise CheckpointError(field, f"names no {what}", RESTORE_FILE)
        if not all(isinstance(name, str) and name for name in entries):
            raise CheckpointError(field, f"names {what} by something that is not text, or empty", RESTORE_FILE)
        self._field = field
        self._entries: Mapping[str, Any] = entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def table(self, name: str) -> "Table":
        return Table(f"{self._field}: {name}", self._entry(name))

    def index(self, name: str, size: int) -> int:
        """The entry as an integer from 0 to `size` - 1."""
        index, field = self._entry(name), f"{self._field}.{name}"
        if type(index) is not int:  # isinstance would accept a bool
            raise CheckpointError(field, f"is a {type(index).__name__}, not an int", RESTORE_FILE)
        require_index(field, index, size)
        return index

    def floats(self, name: str, shape: tuple[int | None, ...], fewest: int = 1) -> Tensor:
        """The entry as real, finite numbers in float32. shape: None is any size of at least `fewest`."""
        tensor, field = self._entry(name), f"{self._field}.{name}"
        if not isinstance(tensor, Tensor):
            raise CheckpointError(field, f"is a {type(tensor).__name__}, not a tensor", RESTORE_FILE)
        if tensor.layout != torch.strided or tensor.is_nested or tensor.dtype not in _FLOATS:
            problem = f"is {tensor.dtype}, {tensor.layout}: no plain floating-point numbers"
            raise CheckpointError(field, problem, RESTORE_FILE)
        sizes = zip(tensor.shape, shape, strict=False)
        if tensor.dim() != len(shape) or not all(a >= fewest if b is None else a == b for a, b in sizes):
            expected = ", ".join(f"at least {fewest}" if size is None else str(size) for size in shape)
            raise CheckpointError(field, f"is {list(tensor.shape)}, not [{expected}]", RESTORE_FILE)
        # A file of a few bytes can declare a tensor of any size, or an empty one.
        if tensor.device.type != "cpu" or tensor.nbytes > tensor.untyped_storage().nbytes():
            raise CheckpointError(field, "has fewer numbers in the file than its shape", RESTORE_FILE)
        numbers = tensor.detach().float()
        if not numbers.isfinite().all():
            raise CheckpointError(field, "holds numbers that are not finite in float32", RESTORE_FILE)
        return numbers

    def _entry(self, name: str) -> object:
        if name not in self._entries:
            raise CheckpointError(self._field, f"lacks {name}", RESTORE_FILE)
        return self._entries[name]


def read_table(path: Path, what: str) -> Table:
    """The entries in `path`. what: their name in errors. Nothing in the file is executed. Raises CheckpointError if the file is
    missing, damaged, too large or empty, or holds an object that a table does not support."""
    if not is_file(path) and not path.is_dir():
        raise CheckpointError(path.name, f"there is none in {path.parent}", f"download it: it holds the {what}")
    with open_file(path) as file:
        _check_size(file, path.name)
        try:
            entries = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            # For a damaged file the unpickler raises errors of many types, and torch's message recommends executing it.
            problem = f"is damaged, or holds more than tensors, numbers and texts ({type(error).__name__})"
            raise CheckpointError(path.name, problem, "download it again") from error
    return Table(path.name, entries, what)


def _check_size(file: BinaryIO, name: str) -> None:
    """Checks the size before anything is unpacked. Leaves the file at its start."""
    try:
        parts = zipfile.ZipFile(file).infolist() if zipfile.is_zipfile(file) else None
    except Exception as error:  # a damaged file raises more than zipfile's own errors
        raise CheckpointError(name, f"is damaged ({type(error).__name__})", "download it again") from error
    if parts is None:
        # An old torch's format: tensors are inside the pickle.
        size = pickled = file.seek(0, 2)
    else:
        size = sum(part.file_size for part in parts)
        pickled = sum(part.file_size for part in parts if part.filename.endswith(".pkl"))
    file.seek(0)
    for counted, most in ((size, MAX_BYTES), (pickled, MAX_PICKLE)):
        if counted > most:
            raise CheckpointError(name, f"unpacks to {counted:,} bytes, above {most:,}", "download it again")
