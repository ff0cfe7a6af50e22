"""The bytes of a storage that an access touches."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Cells = NDArray[np.int32]
Selection = tuple[Any, ...]
"""A numpy index of the rows or elements of a tensor that an operation accesses."""


@dataclass(frozen=True, slots=True)
class Region:
    """A strided part of a storage. start, strides: in bytes. selection: of elements, None for all. whole: all of it."""

    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    selection: Selection | None
    whole: bool

    @classmethod
    def of(cls, tensor: Tensor, size: int, selection: Selection | None) -> "Region":
        """size: bytes of the tensor's storage."""
        itemsize = tensor.itemsize
        start = int(tensor.storage_offset()) * itemsize
        whole = selection is None and start == 0 and tensor.nbytes == size and tensor.is_contiguous()
        strides = tuple(stride * itemsize for stride in tensor.stride())
        return cls(start, tuple(tensor.shape), strides, itemsize, selection, whole)

    def view(self, cells: Cells, granule: int) -> Cells:
        """A view of `cells`, which has one cell per `granule` bytes of the storage, with the cells of this region."""
        width = self.itemsize // granule
        cell = cells.itemsize
        strides = tuple(stride // granule * cell for stride in self.strides)
        shape = self.shape
        if width > 1:
            shape, strides = (*shape, width), (*strides, cell)
        return np.ndarray(shape, cells.dtype, cells.data, self.start // granule * cell, strides)

    def latest(self, cells: Cells, granule: int) -> int:
        """The maximum of the region's cells; 0 if it has none."""
        part = self.view(cells, granule)
        if self.selection is not None:
            part = part[self.selection]
        return int(part.max()) if part.size else 0

    def fill(self, cells: Cells, granule: int, value: int) -> None:
        part = self.view(cells, granule)
        part[... if self.selection is None else self.selection] = value

    def first(self, cells: Cells, granule: int, value: int) -> int:
        """The byte of the storage at the region's first cell with that value."""
        mine = np.zeros_like(cells)
        self.fill(mine, granule, 1)
        return int(np.flatnonzero((cells == value) & (mine != 0))[0]) * granule
