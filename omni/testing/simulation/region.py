"""Which bytes of a storage an access touches."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Cells = NDArray[np.int32]
Selection = tuple[Any, ...]
"""An index of numpy's, of the rows or elements of a tensor that an operation touches."""


@dataclass(frozen=True, slots=True)
class Region:
    """A strided part of a storage. start, strides: in bytes. selection: of the elements, None for all. whole: all there is."""

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
        """Cells of this region, as a view of `cells`, one for each `granule` bytes of the storage."""
        width = self.itemsize // granule
        cell = cells.itemsize
        strides = tuple(stride // granule * cell for stride in self.strides)
        shape = self.shape
        if width > 1:
            shape, strides = (*shape, width), (*strides, cell)
        return np.ndarray(shape, cells.dtype, cells.data, self.start // granule * cell, strides)

    def latest(self, cells: Cells, granule: int) -> int:
        """The greatest of the region's cells; 0 if it has none."""
        part = self.view(cells, granule)
        if self.selection is not None:
            part = part[self.selection]
        return int(part.max()) if part.size else 0

    def fill(self, cells: Cells, granule: int, value: int) -> None:
        part = self.view(cells, granule)
        part[... if self.selection is None else self.selection] = value

    def first(self, cells: Cells, granule: int, value: int) -> int:
        """Byte of the storage at which the region's first cell of that value is."""
        mine = np.zeros_like(cells)
        self.fill(mine, granule, 1)
        return int(np.flatnonzero((cells == value) & (mine != 0))[0]) * granule
