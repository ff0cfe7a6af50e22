"""Blocks and rows against a set; slots against counting."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from omni_ar.run.blocks import NULL_BLOCK, BlockPool, Row, RowTable, slots_of

BLOCKS, ROWS = 12, 4


class Blocks(RuleBasedStateMachine):
    """The pool hands out what a set of free blocks would, and nothing twice."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(BLOCKS)
        self.held: list[list[int]] = []
        self.free = set(range(1, BLOCKS + 1))

    @rule(count=st.integers(0, BLOCKS))
    def allocate(self, count: int) -> None:
        if count > len(self.free):
            with pytest.raises(RuntimeError, match=f"{count} blocks wanted, {len(self.free)} free"):
                self.pool.allocate(count)
            return
        blocks = self.pool.allocate(count)
        assert len(set(blocks)) == count
        assert self.free.issuperset(blocks)
        assert NULL_BLOCK not in blocks
        self.free.difference_update(blocks)
        self.held.append(blocks)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        blocks = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.pool.release(blocks)
        self.free.update(blocks)

    @invariant()
    def counts_agree(self) -> None:
        assert self.pool.available == len(self.free)
        assert self.pool.used + self.pool.available == self.pool.capacity == BLOCKS


class Rows(RuleBasedStateMachine):
    """A row is current from its allocation to its retirement, and its index is free only after its release."""

    def __init__(self) -> None:
        super().__init__()
        self.table = RowTable(ROWS)
        self.current: list[Row] = []
        self.retired: list[Row] = []
        self.past: list[Row] = []

    @precondition(lambda self: len(self.current) + len(self.retired) < ROWS)
    @rule()
    def allocate(self) -> None:
        row = self.table.allocate()
        assert row.index not in {other.index for other in (*self.current, *self.retired)}
        assert row not in self.past
        self.current.append(row)

    @precondition(lambda self: self.current)
    @rule(data=st.data())
    def retire(self, data: st.DataObject) -> None:
        row = self.current.pop(data.draw(st.integers(0, len(self.current) - 1)))
        self.table.retire(row)
        self.retired.append(row)

    @precondition(lambda self: self.retired)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        row = self.retired.pop(data.draw(st.integers(0, len(self.retired) - 1)))
        self.table.release(row)
        self.past.append(row)

    @invariant()
    def agree(self) -> None:
        assert self.table.used == len(self.current) + len(self.retired)
        assert self.table.available == ROWS - self.table.used
        assert all(self.table.current(row) for row in self.current)
        assert not any(self.table.current(row) for row in (*self.retired, *self.past))


TestBlocks = Blocks.TestCase
TestRows = Rows.TestCase


@given(st.integers(1, 9), st.lists(st.integers(1, 50), min_size=1, max_size=6, unique=True), st.data())
def test_slots_are_what_laying_the_blocks_end_to_end_gives(size: int, blocks: list[int], data: st.DataObject):
    laid = [block * size + offset for block in blocks for offset in range(size)]
    positions = data.draw(st.lists(st.integers(0, len(laid) - 1)))
    slots = slots_of(np.array(blocks), np.array(positions, np.int64), size)
    assert slots.tolist() == [laid[position] for position in positions]
    assert slots.dtype == np.int64
