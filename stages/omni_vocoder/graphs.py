"""Captured chunks."""

from dataclasses import dataclass

from omni.batch_sizes import BatchSizes
from omni.device import Graph


@dataclass(frozen=True, slots=True)
class Chunk:
    """What chunks must have in common to share a step: their frames, and whether they are the first of their requests."""

    frames: int
    first: bool


class ChunkGraphs:
    """What was captured at start, by rows of the batch, chunk, and which of the output buffers it writes."""

    def __init__(self, stage: str) -> None:
        self._graphs: dict[tuple[int, Chunk, int], Graph] = {}
        self._chunks: set[Chunk] = set()
        self._sizes = BatchSizes(stage)

    def add(self, rows: int, chunk: Chunk, turn: int, graph: Graph) -> None:
        self._graphs[rows, chunk, turn] = graph
        self._chunks.add(chunk)
        self._sizes.add(rows)

    def get(self, rows: int, chunk: Chunk, turn: int) -> Graph:
        return self._graphs[rows, chunk, turn]

    def padded(self, rows: int, chunk: Chunk) -> int | None:
        """How many rows the captured batch has that may stand for this one; None if none may."""
        return self._sizes.padded(rows) if chunk in self._chunks else None
