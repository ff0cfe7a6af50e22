"""Graphs of batches, captured at start for some numbers of rows."""

import logging
from collections.abc import Hashable
from typing import Generic, TypeVar

from omni.batch_sizes import BatchSizes
from omni.device import Graph

_log = logging.getLogger(__name__)

WhatT = TypeVar("WhatT", bound=Hashable)


class BatchGraphs(Generic[WhatT]):
    """By what a batch does, and by how many rows it has."""

    def __init__(self, stage: str, others: str) -> None:
        """others: what batches are called, for the log, that do something of which nothing is captured."""
        self._stage = stage
        self._others = others
        self._told = False
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
        """How many rows the captured batch has that may stand for this one; None if none may: it runs uncaptured, and the first
        that does, where any are captured, is logged."""
        if what in self._whats:
            return self._sizes.padded(rows)
        if self._whats and not self._told:
            self._told = True
            _log.warning("%s: %s run uncaptured", self._stage, self._others)
        return None
