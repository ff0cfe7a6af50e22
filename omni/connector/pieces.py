"""A payload's tensors as one sequence of bytes, cut into pieces."""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

import msgspec
import torch
from torch import Tensor

from omni.device import COMPLETED, Event
from omni.ipc import Typed
from omni.payload import PageSlice, Payload
from omni.payload.copier import Transfer

ALIGNMENT = 64
"""Each tensor starts at a multiple of this number of bytes, so that its memory can be viewed in any dtype."""
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class Part(msgspec.Struct, frozen=True):
    """A tensor of a payload, viewed as `[rows, columns]`, and its place in the payload's bytes.

    shape: the consumer's shape.
    """

    name: str
    tensor: Tensor | PageSlice
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    nbytes: int

    @property
    def rows(self) -> int:
        return self.shape[0] if self.shape else 1

    @property
    def columns(self) -> int:
        return math.prod(self.shape[1:])


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows `first` to `end` and columns `left` to `right` of a part: consecutive bytes of the payload."""

    part: Part
    first: int
    end: int
    left: int
    right: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.end - self.first, self.right - self.left

    @property
    def start(self) -> int:
        """Its first byte in the payload."""
        return self.part.start + (self.first * self.part.columns + self.left) * self.part.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.part.dtype.itemsize

    def transfer(self, memory: Tensor) -> Transfer:
        """The copy into `memory`, uint8 `[nbytes]`."""
        into, source = memory.view(self.part.dtype).view(self.shape), self.part.tensor
        return Transfer(source, into, rows=slice(self.first, self.end), columns=slice(self.left, self.right))


def parts_of(payload: Payload) -> tuple[tuple[Part, ...], int]:
    """The payload's tensors as adjacent parts, and their total bytes."""
    parts: list[Part] = []
    start = 0
    for name, tensor in payload.tensors.items():
        shape, dtype = tuple(tensor.shape), tensor.dtype
        nbytes = tensor.nbytes if isinstance(tensor, Tensor) else math.prod(shape) * dtype.itemsize
        parts.append(Part(name=name, tensor=tensor, dtype=dtype, shape=shape, start=start, nbytes=nbytes))
        start += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return tuple(parts), start


def cut(part: Part, most_bytes: int, most_rows: int) -> Iterator[Piece]:
    """Cuts a part into pieces of at most `most_bytes`, in order: whole rows, or parts of large ones.

    most_bytes: a multiple of 16. most_rows: of a page slice, since its slots are uploaded.
    """
    if not part.nbytes:
        return
    columns = most_bytes // part.dtype.itemsize
    rows = columns // part.columns
    if isinstance(part.tensor, PageSlice):
        rows = min(rows, most_rows)
    for first in range(0, part.rows, max(rows, 1)):
        if rows:
            yield Piece(part, first, min(first + rows, part.rows), 0, part.columns)
            continue
        for left in range(0, part.columns, columns):
            yield Piece(part, first, first + 1, left, min(left + columns, part.columns))


def whole(part: Part) -> Piece:
    """A part as one piece."""
    return Piece(part, 0, part.rows, 0, part.columns)


class ByteMemory:
    """Memory as bytes (uint8 `[n]`), and tensors in it. Tensors of one dtype share one view of the memory: a further view costs the
    host a microsecond."""

    __slots__ = ("_base", "_typed")

    def __init__(self, memory: Tensor) -> None:
        self._typed = {torch.uint8: memory}
        self._base = memory.storage_offset()

    def view(self, start: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """start: the first byte, a multiple of the item size."""
        typed = self._typed.get(dtype)
        if typed is None:
            memory = self._typed[torch.uint8]
            if 0 in shape:  # torch views no empty tensor as another type
                return memory.new_empty(shape, dtype=dtype)
            typed = memory[: len(memory) - len(memory) % dtype.itemsize].view(dtype)
            self._typed[dtype] = typed
        return typed.as_strided(shape, _strides(shape), (self._base + start) // dtype.itemsize)


@lru_cache(1024)
def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a contiguous tensor."""
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))


def view(memory: Tensor, start: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """A tensor in the payload's bytes (uint8 `[n]`)."""
    return ByteMemory(memory).view(start, dtype, shape)


class TensorLayout(msgspec.Struct, frozen=True, array_like=True):
    """A tensor's place in its payload's bytes. dtype: torch's name."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int


class PayloadLayout(msgspec.Struct, frozen=True, array_like=True):
    """Metadata of a payload: message and tensor layouts. nbytes: of all tensors, with the gaps between them."""

    meta: Typed[msgspec.Struct]
    tensors: tuple[TensorLayout, ...]
    nbytes: int

    @classmethod
    def of(cls, payload: Payload, parts: Iterable[Part], nbytes: int) -> "PayloadLayout":
        """parts, nbytes: see `parts_of`."""
        tensors = tuple([TensorLayout(p.name, _NAMES[p.dtype], p.shape, p.start) for p in parts])
        return cls(Typed(payload.meta), tensors, nbytes)

    def payload(self, memory: ByteMemory, start: int = 0) -> Payload:
        """The payload, with tensors that are views of its bytes, which begin at `start` of the memory."""
        tensors = {t.name: memory.view(start + t.start, _DTYPES[t.dtype], t.shape) for t in self.tensors}
        return Payload(self.meta.value, tensors)


RangeT = TypeVar("RangeT")


class CopiedRef(Generic[RangeT]):
    """Base class of refs of connectors that copy.

    left: the parts to be copied, in order. copied: the end of the copies launched so far.
    """

    def __init__(self, payload: Payload, ready: Event, left: Iterable[RangeT]) -> None:
        self.sent = False
        self.aborted = False
        self.left = deque(left)
        self.copied: Event = COMPLETED
        self._ready = ready
        self._slices = [tensor for tensor in payload.tensors.values() if isinstance(tensor, PageSlice)]

    @property
    def released(self) -> bool:
        return not self.left

    @property
    def freed(self) -> bool:
        return not self.left and self.copied.done()

    def may_copy(self) -> bool:
        """Whether copies launched now read the payload."""
        return self._ready.done() and all(part.moved.done() for part in self._slices)
