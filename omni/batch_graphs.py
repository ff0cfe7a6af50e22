"""Graphs of batches, captured at start for some numbers of rows."""

from collections.abc import Hashable
from typing import Generic, TypeVar

from omni.batch_sizes import BatchSizes
from omni.device import Graph

WhatT = TypeVar("WhatT", bound=Hashable)


class BatchGraphs(Generic[WhatT]):
    """By what a batch does, and by how many rows it has."""

    def __init__(self, stage: str) -> None:
        self._graphs: dict[tuple[WhatT, int], Graph] = {}
        self._whats: set[WhatT] = set()
        self._sizes = BatchSizes(stage)

    def add(self, what: WhatT, rows: int, graph: Graph) -> None:
        self._graphs[what, rows] = graph
        self._whats.add(what)
        self._sizes.add(rows)

    def get(self, what: WhatT, rows: int) -> Graph:
        return self._graphs[what, rows]

    def padded(self, what: WhatT, rows: int) -> int | None:
        """How many rows the captured batch has that may stand for this one; None if none may."""
        return self._sizes.padded(rows) if what in self._whats else None
