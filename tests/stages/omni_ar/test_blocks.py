"""Rows against counting, slots against laying blocks end to end."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from omni_ar.run.allocator import RowTable
from omni_ar.run.blocks import BlockTable
from omni_ar.run.request import Row

ROWS = 4


class Rows(RuleBasedStateMachine):
    """Two requests never have the same row, and a row is never equal to an earlier one of its index."""

    def __init__(self) -> None:
        super().__init__()
        self.table = RowTable(ROWS)
        self.current: list[Row] = []
        self.past: list[Row] = []

    @precondition(lambda self: len(self.current) < ROWS)
    @rule()
    def allocate(self) -> None:
        row = self.table.allocate()
        assert row.index not in {other.index for other in self.current}
        assert row not in self.past
        self.current.append(row)

    @precondition(lambda self: self.current)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        row = self.current.pop(data.draw(st.integers(0, len(self.current) - 1)))
        self.table.release(row)
        self.past.append(row)

    @invariant()
    def agree(self) -> None:
        assert self.table.used == len(self.current)
        assert self.table.available == ROWS - self.table.used


TestRows = Rows.TestCase


@given(st.integers(1, 9), st.lists(st.integers(1, 50), min_size=1, max_size=6, unique=True), st.data())
def test_slots_are_what_laying_the_blocks_end_to_end_gives(size: int, blocks: list[int], data: st.DataObject):
    laid = [block * size + offset for block in blocks for offset in range(size)]
    positions = data.draw(st.lists(st.integers(0, len(laid) - 1)))
    held = data.draw(st.integers(0, len(blocks)))
    table = BlockTable.of("r", blocks[:held], max_blocks=8)
    for block in blocks[held:]:
        table.append(block)
    slots = table.slots(np.array(positions, np.int64), size)
    assert slots.tolist() == [laid[position] for position in positions]
    assert slots.dtype == np.int64
    assert table.blocks.tolist() == blocks
