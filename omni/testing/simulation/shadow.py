"""Shadow memory: the last accesses to each part of a storage, and images of host slots at the launch of phases that use them."""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, UntypedStorage

Cells = NDArray[np.int32]
Selection = tuple[Any, ...]
"""A numpy index of the rows or elements of a tensor that an operation accesses."""


@dataclass(slots=True)  # not frozen, which would make it slower
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
        itemsize = tensor.itemsize
        start = int(tensor.storage_offset()) * itemsize
        whole = selection is None and start == 0 and tensor.nbytes == size and tensor.is_contiguous()
        strides = tuple(stride * itemsize for stride in tensor.stride())
        return cls(
            start=start,
            shape=tuple(tensor.shape),
            strides=strides,
            itemsize=itemsize,
            selection=selection,
            whole=whole,
        )

    def view(self, cells: Cells, granule: int) -> Cells:
        """The cells of this region, of `cells` with one per `granule` bytes of the storage."""
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


Kind = tuple[int, bool]
"""An agent, and whether the access writes."""


class Shadow(weakref.ref[UntypedStorage]):
    """The shadow of one storage, until a callback at the storage's end. Accesses are increasing numbers; 0 is none. key, size: of
    the storage. latest: each agent's last read and last write of any part. born: number of the launch that made it, 0 if none did.
    home: the agent on whose stream it was allocated and is reused; None if the host did."""

    __slots__ = ("_cells", "_granule", "born", "home", "key", "latest", "size")

    def begin(self, key: int, granule: int, home: int | None, born: int) -> None:
        """Initializes it, at once after it is made: a constructor in Python would take longer than the rest. granule: bytes of the
        parts that are tracked separately, until an access needs smaller ones."""
        storage = self()
        assert storage is not None
        self.key = key
        self.size = storage.nbytes()
        self.home = home
        self.born = born
        self.latest: dict[Kind, int] = {}
        self._granule = granule
        self._cells: dict[Kind, Cells] | None = None
        """Cells of each kind. Without cells, the latest access to any part counts for the whole storage."""

    def last(self, kind: Kind, region: Region) -> int:
        if self._cells is None or kind not in self._cells:
            return self.latest[kind]
        cells = self._refined(self._cells, region.itemsize)
        return region.latest(cells[kind], self._granule)

    def mark(self, kind: Kind, region: Region, access: int) -> None:
        before = self.latest.get(kind, 0)
        self.latest[kind] = access
        if region.whole:
            if self._cells is not None:
                self._cells.pop(kind, None)
            return
        all_cells = self._refined(self._cells or {}, region.itemsize)
        cells = all_cells.get(kind)
        if cells is None:
            count = -(-self.size // self._granule)
            # Zeroed pages cost nothing until written, and most parts of large pages are never accessed.
            cells = np.full(count, before, np.int32) if before else np.zeros(count, np.int32)
            all_cells[kind] = cells
        region.fill(cells, self._granule, access)

    def first_byte(self, kind: Kind, region: Region, access: int) -> int:
        if self._cells is None or kind not in self._cells:
            return region.start
        return region.first(self._cells[kind], self._granule, access)

    def grow(self, size: int) -> None:
        """Sets the storage's size, which an operation may enlarge. The new bytes have no accesses."""
        if size <= self.size:
            return
        self.size = size
        count = -(-size // self._granule)
        if self._cells is not None:
            self._cells = {kind: np.pad(cells, (0, max(count - cells.size, 0))) for kind, cells in self._cells.items()}

    def _refined(self, cells: dict[Kind, Cells], itemsize: int) -> dict[Kind, Cells]:
        """The cells, split to the granularity of items of that size."""
        if itemsize % self._granule:
            factor, self._granule = self._granule // itemsize, itemsize
            cells = {kind: np.repeat(each, factor) for kind, each in cells.items()}
        self._cells = cells
        return cells


def key_of(tensor: Tensor) -> int:
    """A key of the tensor's storage, unique during its life."""
    key: int = tensor.untyped_storage()._cdata
    return key


@dataclass(frozen=True, slots=True)
class Image:
    """A slot's bytes at a launch. version: the slot's version then."""

    tensor: Tensor
    version: int
    content: NDArray[np.uint8]


class SlotImages:
    """Host slots that were handed out. The host writes them through numpy; a comparison of contents when a phase runs
    detects such writes. A slot's version counts the legal changes: handing it out again, and phases that write it."""

    def __init__(self) -> None:
        self._versions: dict[int, int] = {}

    def handed_out(self, key: int) -> None:
        self._versions[key] = self._versions.get(key, 0) + 1

    def written(self, key: int) -> None:
        """Records a phase's write. A no-op if the key is not a slot's."""
        if key in self._versions:
            self._versions[key] += 1

    def gone(self, key: int) -> None:
        self._versions.pop(key, None)

    def take(self, buffers: Iterable[object]) -> list[Image]:
        images: list[Image] = []
        if self._versions:
            for buffer in buffers:
                version = self._versions.get(key_of(buffer)) if isinstance(buffer, Tensor) else None
                if version is not None:
                    assert isinstance(buffer, Tensor)
                    images.append(Image(buffer, version, _bytes(buffer).copy()))
        return images

    def changed(self, image: Image) -> int | None:
        """The first byte that the host changed illegally since the image; None if there is none."""
        if self._versions.get(key_of(image.tensor)) != image.version:
            return None
        places = np.flatnonzero(_bytes(image.tensor) != image.content)
        return int(places[0]) if places.size else None


def _bytes(tensor: Tensor) -> NDArray[np.uint8]:
    numbers: NDArray[np.uint8] = tensor.detach().contiguous().flatten().view(torch.uint8).numpy()
    return numbers
