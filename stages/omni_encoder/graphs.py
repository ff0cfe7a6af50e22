"""Captured batches, by how many embeddings they have room for."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from omni.batch_sizes import BatchSizes
from omni.device import Graph

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CapturedBatch:
    """outputs: in the graph's memory. They are those of the newest replay, until the next of any graph of the stream."""

    length: int
    graph: Graph
    outputs: Mapping[str, Tensor]


class BatchGraphs:
    """What was captured at start."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._told = False
        self._captured: dict[int, CapturedBatch] = {}
        self._lengths = BatchSizes(stage, unit="embeddings", option="graph_lengths")

    def add(self, captured: CapturedBatch) -> None:
        self._captured[captured.length] = captured
        self._lengths.add(captured.length)

    def clear(self) -> None:
        self._captured.clear()
        self._lengths.clear()

    def find(self, length: int | None) -> CapturedBatch | None:
        """The smallest with room for `length` embeddings; None if there is none: such a batch runs uncaptured, and the first that
        does, where any are captured, is logged.

        length: None if nothing may stand for the batch.
        """
        if length is None:
            if self._captured and not self._told:
                self._told = True
                _log.warning("%s: media that the model cannot pad run uncaptured", self._stage)
            return None
        padded = self._lengths.padded(length)
        return self._captured[padded] if padded is not None else None
