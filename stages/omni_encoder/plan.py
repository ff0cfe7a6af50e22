"""The device inputs of a batch, and their layout."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Part: TypeAlias = Tensor | NDArray[Any]

_ALIGNMENT = 256
"""Inputs begin at multiples of this number of bytes. Kernels read whole cache lines, and a view must begin at a multiple of its
dtype's size."""
_DTYPES = {np.dtype(np.int32): torch.int32, np.dtype(np.int64): torch.int64, np.dtype(np.float32): torch.float32}


@dataclass(frozen=True, slots=True)
class EncoderInput:
    """An input tensor of `EncoderModel.encode`. parts: contiguous, consecutive in memory; zeros fill up to `shape`."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, array: NDArray[Any]) -> "EncoderInput":
        """An input with `array` as its only part."""
        return cls(array.shape, _DTYPES[array.dtype], (array,))

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class EncodePlan:
    """The layout of a batch, made by its model. inputs: by name. sizes: number of embeddings of each item. segments: lengths of the
    batch's segments, in order; None in a padded plan, whose shapes do not depend on its content."""

    inputs: Mapping[str, EncoderInput]
    sizes: tuple[int, ...]
    segments: tuple[int, ...] | None

    def __post_init__(self) -> None:
        for name, item in self.inputs.items():
            found = {part.dtype if isinstance(part, Tensor) else _DTYPES[part.dtype] for part in item.parts}
            filled = sum(part.nbytes for part in item.parts)
            if filled > item.nbytes or found - {item.dtype}:
                given = f"{filled} bytes of {', '.join(sorted(map(str, found)))}"
                raise ValueError(f"input {name!r} has parts of {given}; it is {item.nbytes} bytes of {item.dtype}")

    @property
    def nbytes(self) -> int:
        return max((start + item.nbytes for _, start, item in self.placed()), default=0)

    def placed(self) -> Iterator[tuple[str, int, EncoderInput]]:
        """Every input, with its name and byte offset in the buffer."""
        start = 0
        for name, item in self.inputs.items():
            yield name, start, item
            start += -(-item.nbytes // _ALIGNMENT) * _ALIGNMENT

    def views(self, buffer: Tensor) -> dict[str, Tensor]:
        """Views of the inputs in `buffer`, uint8, of at least `nbytes`."""
        return {
            name: buffer[start : start + item.nbytes].view(item.dtype).view(item.shape)
            for name, start, item in self.placed()
        }
