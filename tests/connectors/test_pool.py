"""The pool that ends of a connector share: its ranges, and how much of it a consumer holds."""

from dataclasses import dataclass, field

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omni.connector import EdgeEnd
from omni.connector.pool import (
    BOARD_CELLS,
    PoolPending,
    PoolReceiver,
    PoolRef,
    PoolSender,
    RangeAllocator,
    TensorMemory,
)
from omni.connector.pool.sender import PayloadRange
from omni.device import COMPLETED
from omni.device.cpu import CpuDevice
from omni.payload import Payload

UNIT = 256
"""Bytes that ranges are rounded up to."""


@given(
    size=st.integers(0, 20 * UNIT),
    steps=st.lists(st.tuples(st.booleans(), st.integers(1, 6 * UNIT), st.integers(0, 99)), max_size=60),
)
def test_ranges_never_overlap_and_all_memory_comes_back(size: int, steps: list[tuple[bool, int, int]]) -> None:
    """Beside a list of the units that are taken: the first gap that is long enough."""
    ranges = RangeAllocator(size)
    taken = [False] * (size // UNIT)
    held: list[tuple[int, int]] = []

    def mark(start: int, nbytes: int, value: bool) -> None:
        units = range(start // UNIT, start // UNIT + -(-nbytes // UNIT))
        assert start % UNIT == 0
        assert all(taken[unit] != value for unit in units)
        for unit in units:
            taken[unit] = value

    for acquires, nbytes, which in steps:
        if acquires:
            count = -(-nbytes // UNIT)
            gaps = [i for i in range(len(taken) - count + 1) if not any(taken[i : i + count])]
            start = ranges.acquire(nbytes)
            assert start == (gaps[0] * UNIT if gaps else None)
            if start is not None:
                mark(start, nbytes, True)
                held.append((start, nbytes))
        elif held:
            start, nbytes = held.pop(which % len(held))
            ranges.release(start, nbytes)
            mark(start, nbytes, False)
    for start, nbytes in held:
        ranges.release(start, nbytes)
    if taken:
        assert ranges.acquire(len(taken) * UNIT) == 0


class Nothing(msgspec.Struct, frozen=True):
    """The error for a payload."""


class Later:
    """An event. finished: whether it is done."""

    finished = False

    def done(self) -> bool:
        return self.finished


@dataclass
class Pool:
    """Both ends of a pool, on the CPU."""

    nbytes: int
    sender: PoolSender = field(init=False)
    receiver: PoolReceiver = field(init=False)
    memory: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        end = EdgeEnd("a->b", CpuDevice(), self.nbytes)
        self.memory, board = torch.zeros(self.nbytes, dtype=torch.uint8), np.zeros(BOARD_CELLS, np.uint64)
        self.sender = PoolSender(end, pool=self.memory, board=board, address=Nothing(), on_close=lambda: None)
        there = TensorMemory(self.memory, torch.device("cpu"))
        self.receiver = PoolReceiver(end, memory=there, board=board, pool_bytes=self.nbytes, on_close=lambda: None)

    def send(self, nbytes: int) -> PoolRef:
        return self.sender.send(Payload(Nothing(), {"x": torch.ones(nbytes, dtype=torch.uint8)}), COMPLETED)

    def through(self, nbytes: int) -> PoolPending | None:
        """A payload of one piece at its consumer; None if the pool is full."""
        ref = self.send(nbytes)
        pieces = ref.pieces()
        if not pieces:
            ref.abort("the pool is full")
            return None
        return self.receiver.receive(pieces[0])

    def is_view(self, pending: PoolPending) -> bool:
        received = pending.poll()
        assert received is not None
        tensor = received.payload.tensors["x"]
        assert isinstance(tensor, torch.Tensor)
        return tensor.untyped_storage().data_ptr() == self.memory.untyped_storage().data_ptr()


@pytest.mark.parametrize("nbytes", [2**16, 2**20], ids=["few ranges", "few cells of the board"])
def test_small_payloads_that_are_kept_leave_a_quarter_of_the_pool(nbytes: int) -> None:
    pool = Pool(nbytes)
    kept: list[PoolPending] = []
    for _ in range(BOARD_CELLS + 100):
        pending = pool.through(8)
        assert pending is not None, f"{len(kept)} payloads are kept, and the pool is full"
        kept.append(pending)
        pool.receiver.tick()
    assert pool.is_view(kept[0])
    assert not pool.is_view(kept[-1])


def test_a_released_payload_that_is_still_read_counts_as_kept() -> None:
    pool, read = Pool(2**16), Later()
    for _ in range(3):
        pending = pool.through(2**14)
        assert pending is not None
        assert pool.is_view(pending)
        pending.release(read)
    pool.receiver.tick()
    fourth = pool.through(2**14)
    assert fourth is not None
    assert not pool.is_view(fourth), "the three fill what may be read in place until they are read"
    read.finished = True
    pool.receiver.tick()
    fifth = pool.through(2**14)
    assert fifth is not None
    assert pool.is_view(fifth)


def test_payloads_that_are_kept_do_not_divide_the_pool_for_large_ones() -> None:
    """Every other one of many small payloads is kept, wherever it is in the pool."""
    pool = Pool(2**16)
    for _ in range(4):
        under_way = [piece for _ in range(300) for piece in pool.send(8).pieces()]
        for number, piece in enumerate(under_way):
            pending = pool.receiver.receive(piece)
            if number % 2:
                pending.release(COMPLETED)
            pool.receiver.tick()
    assert pool.through(2**14) is not None


def test_all_of_the_pool_comes_back_from_payloads_given_up() -> None:
    pool = Pool(2**16)
    for _ in range(9):
        refs = [pool.send(2**14) for _ in range(4)]
        pieces = [ref.pieces() for ref in refs[:2]]
        for ref in refs:
            ref.abort("it is given up")
        for (piece,) in pieces:
            pool.receiver.discard(piece)
    assert pool.sender.acquire(PayloadRange(0, 2**16), None, 1) is not None


def test_a_receiver_is_busy_until_its_payloads_are_released() -> None:
    """The engine closes the receiver of a lost sender once it is not busy: its consumers may still read the pool."""
    pool = Pool(2**16)
    pending = pool.through(8)
    assert pending is not None
    busy = []
    for step in (pool.receiver.tick, lambda: pending.release(COMPLETED), pool.receiver.tick):
        step()
        busy.append(pool.receiver.busy)
    assert busy == [True, True, False]
