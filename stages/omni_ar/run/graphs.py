"""Captured steps of a stage, by how many rows they have."""

from dataclasses import dataclass

from omni.batch_sizes import BatchSizes
from omni.device import Graph


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """Those of a step's launches that are not the token source's. decode: inputs and forward of a batch that only decodes."""

    decode: Graph
    codes: Graph | None


class StepGraphs:
    """What was captured at start: nothing, or a step for each of some numbers of rows."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._sizes = BatchSizes(name)
        self._steps: dict[int, CapturedStep] = {}

    def __getitem__(self, rows: int) -> CapturedStep:
        return self._steps[rows]

    def __setitem__(self, rows: int, step: CapturedStep) -> None:
        self._steps[rows] = step
        self._sizes.add(rows)

    def clear(self) -> None:
        self._steps.clear()
        self._sizes.clear()

    def padded(self, rows: int) -> int | None:
        """How many rows a captured batch has that has room for `rows`, of which there may be none; None if no batch has."""
        return self._sizes.padded(rows) if rows else None
