"""Captured graphs of a stage, by what a batch does and by its size."""

import logging
from bisect import bisect_left, insort
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

_log = logging.getLogger(__name__)

KeyT = TypeVar("KeyT", bound=Hashable)
GraphT = TypeVar("GraphT")


@dataclass(frozen=True, slots=True)
class Captured(Generic[GraphT]):
    """size: a smaller batch is padded to it. graph: a `Graph`, or a record of the stage's own with one."""

    size: int
    graph: GraphT


class CapturedGraphs(Generic[KeyT, GraphT]):
    """Finds the captured graph that a batch is padded to. Where anything is captured, logs once why batches run uncaptured."""

    def __init__(
        self, stage: str, *, unit: str = "rows", option: str = "graph_batch_sizes", others: str = "other batches"
    ) -> None:
        """unit: of sizes. option: the stage's option with them. others: batches of keys with no graph, in the log."""
        self._stage = stage
        self._unit = unit
        self._option = option
        self._others = others
        self._graphs: dict[KeyT, list[Captured[GraphT]]] = {}
        self._logged: set[str] = set()

    def add(self, key: KeyT, size: int, graph: GraphT) -> None:
        insort(self._graphs.setdefault(key, []), Captured(size, graph), key=_size)

    def clear(self) -> None:
        self._graphs.clear()

    def find(self, key: KeyT, size: int) -> Captured[GraphT] | None:
        captured = self._graphs.get(key)
        if captured is None:
            self.log_uncaptured(self._others)
            return None
        place = bisect_left(captured, size, key=_size)
        if place < len(captured):
            return captured[place]
        batches = f"batches of more than {captured[-1].size} {self._unit}"
        self.log_uncaptured(batches, f": raise {self._stage}.{self._option}")
        return None

    def log_uncaptured(self, batches: str, remedy: str = "") -> None:
        if self._graphs and batches not in self._logged:
            self._logged.add(batches)
            _log.warning("%s: %s run uncaptured%s", self._stage, batches, remedy)


def _size(captured: Captured[GraphT]) -> int:
    return captured.size
