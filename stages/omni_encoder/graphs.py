"""Captured batches, by how many embeddings they have room for."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from omni.batch_sizes import BatchSizes
from omni.device import Graph


@dataclass(frozen=True, slots=True)
class CapturedBatch:
    """outputs: in the graph's memory. They are those of the newest replay, until the next of any graph of the stream."""

    length: int
    graph: Graph
    outputs: Mapping[str, Tensor]


class BatchGraphs:
    """What was captured at start."""

    def __init__(self, stage: str) -> None:
        self._captured: dict[int, CapturedBatch] = {}
        self._lengths = BatchSizes(stage, unit="embeddings", option="graph_lengths")

    def add(self, captured: CapturedBatch) -> None:
        self._captured[captured.length] = captured
        self._lengths.add(captured.length)

    def clear(self) -> None:
        self._captured.clear()
        self._lengths.clear()

    def find(self, length: int | None) -> CapturedBatch | None:
        """The smallest with room for `length` embeddings; None if there is none: such a batch runs uncaptured.

        length: None if nothing may stand for the batch.
        """
        padded = self._lengths.padded(length) if length is not None else None
        return self._captured[padded] if padded is not None else None
