"""A payload's tensors as rows, and the pieces that they are cut into."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.payload import PageSlice, Payload

_ALIGNMENT = 64
"""Bytes. Every tensor begins at a multiple, so that memory can be seen as any dtype."""


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of a payload, seen as `[rows, columns]`, and where its bytes belong in the payload's host memory.

    shape: of what the consumer gets.
    """

    name: str
    tensor: Tensor | PageSlice
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int

    @property
    def rows(self) -> int:
        return self.shape[0] if self.shape else 1

    @property
    def columns(self) -> int:
        return math.prod(self.shape[1:])

    @property
    def nbytes(self) -> int:
        return self.rows * self.columns * self.dtype.itemsize

    def in_memory(self, host: Tensor) -> Tensor:
        """The part's place in the payload's host memory (uint8 `[n]`), as the consumer sees it."""
        return host[self.start : self.start + self.nbytes].view(self.dtype).view(self.shape)


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows `first` to `end` of a part, its columns `left` to `right`: consecutive bytes of the payload's host memory."""

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
        """Its first byte in the payload's host memory."""
        return self.part.start + (self.first * self.part.columns + self.left) * self.part.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.part.dtype.itemsize

    def scattered(self) -> NDArray[np.int64] | None:
        """The page slots of its rows, where they do not follow one another: these have to be told to the device."""
        if not isinstance(self.part.tensor, PageSlice):
            return None
        slots = self.part.tensor.slots[self.first : self.end]
        return None if np.array_equal(slots, np.arange(slots[0], slots[0] + slots.size)) else slots


def parts_of(payload: Payload) -> tuple[tuple[Part, ...], int]:
    """The payload's tensors side by side, and the bytes of host memory that they take."""
    parts: list[Part] = []
    start = 0
    for name, tensor in payload.tensors.items():
        shape: tuple[int, ...]
        if isinstance(tensor, PageSlice):
            dtype, shape = tensor.pages.dtype, (tensor.slots.size, tensor.pages.shape[-1])
        else:
            dtype, shape = tensor.dtype, tuple(tensor.shape)
        parts.append(Part(name, tensor, dtype, shape, start))
        start += -(-parts[-1].nbytes // _ALIGNMENT) * _ALIGNMENT
    return tuple(parts), start


def whole(part: Part) -> Piece:
    return Piece(part, 0, part.rows, 0, part.columns)


def cut(part: Part, most_bytes: int, most_rows: int) -> Iterator[Piece]:
    """The part in pieces of at most so many bytes, in order: whole rows where they fit, else parts of single ones."""
    if not part.nbytes:
        return
    columns = most_bytes // part.dtype.itemsize
    rows = min(columns // part.columns, most_rows)
    for first in range(0, part.rows, max(rows, 1)):
        if rows:
            yield Piece(part, first, min(first + rows, part.rows), 0, part.columns)
            continue
        for left in range(0, part.columns, columns):
            yield Piece(part, first, first + 1, left, min(left + columns, part.columns))
