"""Shadow memory: the last accesses to each part of a storage."""

import weakref
from collections.abc import Callable

import numpy as np
from torch import Tensor, UntypedStorage

from omni.testing.simulation.region import Cells, Region

Kind = tuple[int, bool]
"""An agent, and whether the access writes."""


class Shadow(weakref.ref[UntypedStorage]):
    """The shadow of one storage, until a callback at the storage's end. Accesses are increasing numbers; 0 is none.

    key: of the storage. latest: each agent's last read and last write of any part. size: bytes. born: number of the
    launch that made the storage, 0 if none did. home: the agent on whose stream it was allocated, for reuse there after
    its end; None if the host allocated it.
    """

    __slots__ = ("_cells", "_granule", "born", "home", "key", "latest", "size")

    def __new__(cls, tensor: Tensor, end: "Callable[[Shadow], object]", home: int | None, born: int) -> "Shadow":
        return super().__new__(cls, tensor.untyped_storage(), end)

    def __init__(self, tensor: Tensor, end: "Callable[[Shadow], object]", home: int | None, born: int) -> None:
        storage = tensor.untyped_storage()
        super().__init__(storage, end)  # type: ignore[call-arg]
        self.key = storage._cdata
        self.size = storage.nbytes()
        self.home = home
        self.born = born
        self.latest: dict[Kind, int] = {}
        self._granule = tensor.itemsize
        self._cells: dict[Kind, Cells] | None = None
        """For a kind without cells, the latest access to any part counts for the whole storage."""

    def last(self, kind: Kind, region: Region) -> int:
        """The last access of that kind to any part of `region`."""
        if self._cells is None or kind not in self._cells:
            return self.latest[kind]
        cells = self._refined(self._cells, region.itemsize)
        return region.latest(cells[kind], self._granule)

    def mark(self, kind: Kind, region: Region, access: int) -> None:
        """Records `access` to `region`."""
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
        """The first byte of `region` that `access` touched."""
        if self._cells is None or kind not in self._cells:
            return region.start
        return region.first(self._cells[kind], self._granule, access)

    def grow(self, size: int) -> None:
        """Sets the storage's size: an operation may enlarge it. The new bytes have no accesses."""
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
