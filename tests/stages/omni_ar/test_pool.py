"""The block pool and its prefix cache against a model of sets and dictionaries."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from torch import Tensor

from omni.device import COMPLETED
from omni.device.cpu import CpuDevice
from omni.payload import PageSlice, Payload
from omni.stage import Produced
from omni_ar.inputs import PromptHidden
from omni_ar.run.blocks.pool import NULL_BLOCK, BlockPool, BlockTable
from omni_ar.run.blocks.reclaim import Reclaimer, Spiller

BLOCKS = 10
KEYS = [bytes([number]) for number in range(5)]
OFFSETS = st.integers(0, 7)


class Pool(RuleBasedStateMachine):
    """users: of each block in use. writable: blocks whose one user may still write them. idle: cached, without users, the least
    recently used first."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(BLOCKS)
        self.tables: list[list[int]] = []
        self.free = set(range(1, BLOCKS + 1))
        self.users: dict[int, int] = {}
        self.writable: set[int] = set()
        self.stored: dict[int, int] = {}
        self.block_of: dict[bytes, int] = {}
        self.idle: list[int] = []
        self.evictions = 0

    def teardown(self) -> None:
        for table in self.tables:
            self.pool.release(table)
        assert self.pool.used == 0
        assert self.pool.available == BLOCKS
        assert not any(self.pool._users[block] for block in range(BLOCKS + 1))

    @rule(count=st.integers(0, BLOCKS))
    def allocate(self, count: int) -> None:
        available = len(self.free) + len(self.idle)
        if count > available:
            with pytest.raises(RuntimeError, match=f"{count} blocks wanted, {available} free"):
                self.pool.allocate(count)
            return
        blocks = self.pool.allocate(count)
        assert NULL_BLOCK not in blocks
        assert len(set(blocks)) == count
        evicted = self.idle[: max(0, count - len(self.free))]
        assert set(blocks) - self.free == set(evicted), "what is free goes first, then the least recently used"
        self.idle = self.idle[len(evicted) :]
        self.evictions += len(evicted)
        self.block_of = {key: block for key, block in self.block_of.items() if block not in evicted}
        self.free -= set(blocks)
        for block in blocks:
            self.users[block], self.stored[block] = 1, 0
            self.writable.add(block)
        self.tables.append(blocks)

    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=4, unique=True), data=st.data())
    def match(self, keys: list[bytes], data: st.DataObject) -> None:
        needed = [data.draw(OFFSETS) for _ in keys]
        expected: list[int] = []
        for key, offsets in zip(keys, needed, strict=True):
            block = self.block_of.get(key)
            if block is None or any(offsets >> bit & 1 and not self.stored[block] >> bit & 1 for bit in range(3)):
                break
            expected.append(block)
        assert self.pool.match(keys, needed) == expected
        assert not self.writable.intersection(expected), "a shared block has no writer"
        for block in expected:
            self.users[block] = self.users.get(block, 0) + 1
            if block in self.idle:
                self.idle.remove(block)
        if expected:
            self.tables.append(expected)

    @precondition(lambda self: self.writable)
    @rule(data=st.data(), offsets=OFFSETS)
    def store(self, data: st.DataObject, offsets: int) -> None:
        block = data.draw(st.sampled_from(sorted(self.writable)))
        self.pool.store(block, offsets)
        self.stored[block] |= offsets

    @precondition(lambda self: self.users)
    @rule(data=st.data(), key=st.sampled_from(KEYS))
    def publish(self, data: st.DataObject, key: bytes) -> None:
        block = data.draw(st.sampled_from(sorted(self.writable) or sorted(self.users)))
        if block not in self.writable and block not in self.block_of.values():
            return  # it was published once and something richer took its place: its user does not offer it again
        self.pool.cache(block, key)
        if block not in self.writable:
            return
        self.writable.discard(block)
        known = self.block_of.get(key)
        if known is None or self.stored[block] | self.stored[known] != self.stored[known]:
            self.block_of[key] = block
            if known in self.idle:
                self.idle.remove(known)
                self.free.add(known)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.release(table)
        for block in reversed(table):
            self.users[block] -= 1
            if self.users[block]:
                continue
            del self.users[block]
            self.writable.discard(block)
            if block in self.block_of.values():
                self.idle.append(block)
            else:
                self.free.add(block)

    @precondition(lambda self: self.free or self.idle)
    @rule(data=st.data())
    def release_once_more(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.free) + self.idle))
        with pytest.raises(RuntimeError, match=f"block {block} was released more often than it was taken"):
            self.pool.release([block])

    @invariant()
    def counts_agree(self) -> None:
        assert self.pool.available == len(self.free) + len(self.idle)
        assert self.pool.used == len(self.users) == BLOCKS - self.pool.available
        assert self.pool.cached == len(self.block_of)
        assert self.pool.evictions == self.evictions
        assert all(self.pool._users[block] == self.users.get(block, 0) for block in range(BLOCKS + 1))


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60)


def test_a_block_that_is_no_richer_does_not_replace_the_first():
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    for block in (first, second):
        pool.store(block, 0b01)
        pool.cache(block, KEYS[0])
    assert pool.match(KEYS[:1], [0b01]) == [first]


def payload(pages: Tensor, rows: int, *, closed: bool = True) -> Produced:
    """A payload of the first `rows` slots of `pages`. closed: whether it is released."""
    made = Produced("r", Payload(PromptHidden(), {"rows": PageSlice(pages, np.arange(rows))}), COMPLETED)
    if closed:
        made.close()
    return made


def test_as_many_slices_are_spilled_as_one_copy_takes():
    device, pages = CpuDevice(), torch.randn(2, 4, 3)
    spiller = Spiller(device, device.stream("ar"), max_entries=5)
    slices = [PageSlice(pages, np.arange(rows)) for rows in (3, 2, 1)]
    assert [part for part, _ in spiller.spill(slices)] == slices[:2]
    assert [part.pages is pages for part in slices] == [False, False, True]
    assert spiller.entries == 5


def test_blocks_become_free_by_themselves_if_no_payload_in_them_is_read():
    device, pool, pages = CpuDevice(), BlockPool(2), torch.randn(2, 4, 3)
    reclaimer = Reclaimer(pool, Spiller(device, device.stream("ar"), max_entries=8))
    table = BlockTable.of("r", pool.allocate(1), max_blocks=1)
    table.unread = 1
    table.produced.extend((payload(pages, 1), payload(pages, 2, closed=False)))
    reclaimer.add_table(table)
    assert not reclaimer.progressing
    table.produced[-1].close()
    assert reclaimer.progressing


@given(st.integers(1, 9), st.lists(st.integers(1, 50), min_size=1, max_size=6, unique=True), st.data())
def test_slots_follow_the_order_of_the_blocks(size: int, blocks: list[int], data: st.DataObject):
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
