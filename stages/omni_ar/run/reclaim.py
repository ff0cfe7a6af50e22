"""Gives rows and blocks back once nothing can touch them any more."""

from dataclasses import dataclass

from omni.device import Event
from omni.stage import Hold
from omni_ar.run.blocks import BlockPool, Row, RowTable


@dataclass(frozen=True, slots=True, eq=False)
class _Leaving:
    blocks: list[int]
    last_step: Event
    holds: list[Hold]

    @property
    def free(self) -> bool:
        # A long answer has thousands of holds: each is asked until it is free, and not again.
        while self.holds and self.holds[-1].free:
            self.holds.pop()
        return not self.holds and self.last_step.done()


class Reclaimer:
    """Rows are free after the last step that writes them, blocks after that and the last reader of their payload pages."""

    def __init__(self, rows: RowTable, blocks: BlockPool) -> None:
        self._rows = rows
        self._blocks = blocks
        self._leaving_rows: list[tuple[Row, Event]] = []
        self._leaving_blocks: list[_Leaving] = []

    def add(self, row: Row, blocks: list[int], last_step: Event, holds: list[Hold]) -> None:
        """Takes `holds` over."""
        self._rows.retire(row)
        self._leaving_rows.append((row, last_step))
        self._leaving_blocks.append(_Leaving(blocks, last_step, holds))

    def tick(self) -> bool:
        """Returns whether anything became free."""
        if not self._leaving_rows and not self._leaving_blocks:
            return False
        rows = [item for item in self._leaving_rows if item[1].done()]
        for row, _ in rows:
            self._rows.release(row)
        self._leaving_rows = [item for item in self._leaving_rows if item not in rows]
        free = [item for item in self._leaving_blocks if item.free]
        for leaving in free:
            self._blocks.release(leaving.blocks)
            self._leaving_blocks.remove(leaving)
        return bool(rows or free)
