"""Shadow memory: for each part of a storage, who touched it last."""

import weakref
from collections.abc import Callable

import numpy as np
from torch import Tensor, UntypedStorage

from omni.testing.simulation.region import Cells, Region

Kind = tuple[int, bool]
"""An agent, and whether it wrote."""


class Shadow(weakref.ref[UntypedStorage]):
    """One storage from its first sight to its end, which it tells of. Accesses are numbers that grow; 0 is none.

    key: of the storage. latest: each agent's last read and last write of any part. size: bytes. born: number of the launch that
    made the storage, 0 if none did. home: the agent on whose stream it was allocated, for use there after its end; None if the host
    allocated it.
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
        """Where a kind has no cells, all of the storage has its latest access."""

    def last(self, kind: Kind, region: Region) -> int:
        """The last access of that kind to any part of `region`."""
        if self._cells is None or kind not in self._cells:
            return self.latest[kind]
        cells = self._refined(self._cells, region.itemsize)
        return region.latest(cells[kind], self._granule)

    def mark(self, kind: Kind, region: Region, access: int) -> None:
        """`access` touches `region`."""
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
            # Zeros come without being written: pages are large, and little of them is touched.
            cells = np.full(count, before, np.int32) if before else np.zeros(count, np.int32)
            all_cells[kind] = cells
        region.fill(cells, self._granule, access)

    def first_byte(self, kind: Kind, region: Region, access: int) -> int:
        """Where `region` meets `access`."""
        if self._cells is None or kind not in self._cells:
            return region.start
        return region.first(self._cells[kind], self._granule, access)

    def grow(self, size: int) -> None:
        """The storage has so many bytes now: an operation may give it more. Nobody has touched those."""
        if size <= self.size:
            return
        self.size = size
        count = -(-size // self._granule)
        if self._cells is not None:
            self._cells = {kind: np.pad(cells, (0, max(count - cells.size, 0))) for kind, cells in self._cells.items()}

    def _refined(self, cells: dict[Kind, Cells], itemsize: int) -> dict[Kind, Cells]:
        """The cells, fine enough for items of that size."""
        if itemsize % self._granule:
            factor, self._granule = self._granule // itemsize, itemsize
            cells = {kind: np.repeat(each, factor) for kind, each in cells.items()}
        self._cells = cells
        return cells


def key_of(tensor: Tensor) -> int:
    """Of the tensor's storage, unique while that lives."""
    key: int = tensor.untyped_storage()._cdata
    return key
