"""Accesses that the happens-before checker reports, and accesses that it does not: by hand, a line or two each."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from omni.device import HostRing, HostSlot
from omni.testing import SimulatedDevice
from tests.omni.testing.pair import Pair, copy, fill, look, races_of


def gather(pages: Tensor, slots_n: Tensor, out_nD: Tensor) -> None:
    torch.index_select(pages.flatten(0, 1), 0, slots_n, out=out_nD)


def store(pages: Tensor, slots_n: Tensor, rows_nD: Tensor) -> None:
    pages.flatten(0, 1).index_copy_(0, slots_n, rows_nD)


@pytest.mark.parametrize("order", [("one", "two"), ("two", "one")])
def test_a_copy_without_a_wait_is_reported_in_whichever_order_it_happened(order: tuple[str, str]):
    pair = Pair()
    target = torch.zeros(4, 2)
    pair.device.launch(pair.one, fill, pair.rows)
    pair.device.launch(pair.two, copy, target, pair.rows)
    for name in order:
        pair.device.run({name})
    (race,) = pair.device.races
    names = {race.first.by: race.first, race.second.by: race.second}
    assert (names["fill"].stream, names["fill"].operation, names["fill"].launch) == ("one", "fill_", 1)
    assert (names["copy"].stream, names["copy"].operation, names["copy"].launch) == ("two", "copy_", 2)
    assert names["fill"].writes
    assert not names["copy"].writes
    assert race.buffer == ("source" if order[1] == "two" else "x") + " (float32 [4, 2])"
    with pytest.raises(AssertionError, match=r"copy \(launch 2, stream 'two'\) reads by copy_"):
        pair.device.assert_no_races()


def test_a_device_that_does_not_check_reports_no_race():
    for check in (True, False):
        device = SimulatedDevice(check=check)
        rows = torch.zeros(4, 2)
        device.launch(device.stream("one"), fill, rows)
        device.launch(device.stream("two"), copy, torch.zeros(4, 2), rows)
        device.run()
        assert bool(device.races) == check


def test_pending_work_is_checked_at_the_end():
    pair = Pair()
    pair.device.launch(pair.one, fill, pair.rows)
    pair.device.launch(pair.two, copy, torch.zeros(4, 2), pair.rows)
    assert pair.device.races == []
    with pytest.raises(AssertionError, match="1 races"):
        pair.device.assert_no_races()
    assert not pair.device.pending


def test_waits_through_a_third_stream_and_synchronizing_order():
    def third(pair: Pair) -> None:
        stream = pair.device.stream("third")
        pair.device.wait(stream, pair.device.record(pair.one))
        pair.device.wait(pair.two, pair.device.record(stream))

    def synchronize(pair: Pair) -> None:
        pair.device.synchronize()

    for order in (Pair.order, third, synchronize):
        pair = Pair()
        pair.device.launch(pair.one, fill, pair.rows)
        order(pair)
        pair.device.launch(pair.two, fill, pair.rows)
        assert not pair.finish(), order


def test_a_wait_orders_no_more_than_was_enqueued_before_its_event():
    pair = Pair()
    event = pair.device.record(pair.one)
    pair.device.launch(pair.one, fill, pair.rows)
    pair.device.wait(pair.two, event)
    pair.device.launch(pair.two, look, pair.rows)
    assert len(pair.finish()) == 1


@pytest.mark.parametrize("asks", [True, False])
def test_an_event_orders_the_host_only_if_it_was_queried(asks: bool):
    pair = Pair()
    pair.device.launch(pair.one, fill, pair.rows)
    event = pair.device.record(pair.one)
    pair.device.run()
    assert not asks or event.done()
    pair.device.launch(pair.two, look, pair.rows)
    assert bool(pair.finish()) != asks


def test_one_race_is_reported_once_however_often_it_happens():
    pair = Pair()
    for _ in range(5):
        pair.device.launch(pair.one, fill, pair.rows)
        pair.device.launch(pair.two, look, pair.rows)
    pair.race()


PARTS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], bool]] = {
    "rows apart": (lambda x: x[:2], lambda x: x[2:], False),
    "a row in common": (lambda x: x[:2], lambda x: x[1:3], True),
    "columns apart": (lambda x: x[:, 0], lambda x: x[:, 1], False),
    "a column and a row": (lambda x: x[:, 0], lambda x: x[3], True),
    "apart by strides": (lambda x: x[::2], lambda x: x[1::2], False),
    "the same, transposed": (lambda x: x.T[0], lambda x: x[:, 0], True),
    "bytes apart": (lambda x: x.view(torch.uint8)[:, :4], lambda x: x[:, 1], False),
    "a byte in common": (lambda x: x.view(torch.uint8)[:, :5], lambda x: x[:, 1], True),
    "words that hold the number": (lambda x: x.view(torch.int64)[2], lambda x: x[2, 1], True),
    "words that do not": (lambda x: x.view(torch.int64)[2], lambda x: x[1, 1], False),
}


@pytest.mark.parametrize("parts", PARTS)
def test_parts_of_a_buffer_conflict_where_they_meet(parts: str):
    first, second, meets = PARTS[parts]
    pair = Pair()
    pair.device.launch(pair.one, fill, first(pair.rows))
    pair.device.launch(pair.two, look, second(pair.rows))
    assert bool(pair.finish()) == meets


CHOSEN: dict[str, Callable[[Tensor, Tensor], object]] = {
    "index_select": lambda x, i: x.index_select(0, i),
    "index_copy_": lambda x, i: x.index_copy_(0, i, torch.ones(len(i), 2)),
    "index_add_": lambda x, i: x.index_add_(0, i, torch.ones(len(i), 2)),
    "index_fill_": lambda x, i: x.index_fill_(0, i, 2),
    "brackets": lambda x, i: x[i],
    "brackets with a place behind": lambda x, i: x[i, 1],
    "assignment": lambda x, i: x.__setitem__(i, 3.0),
    "index_put_": lambda x, i: x.index_put_((i, torch.zeros_like(i)), torch.ones(len(i))),
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "scatter_": lambda x, i: x.scatter_(0, i[:, None], 5.0),
    "scatter_add_": lambda x, i: x.scatter_add_(0, i[:, None], torch.ones(len(i), 1)),
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x),
    "along a transposed dimension": lambda x, i: x.T.index_select(1, i),
    "take_along_dim, which is composed": lambda x, i: torch.take_along_dim(x, i[:, None], 0),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("rows", [[0, 3], [1]])
@pytest.mark.parametrize("how", CHOSEN)
def test_indices_choose_the_rows_that_are_touched(how: str, rows: list[int], inference: bool):
    def choose(pages: Tensor, index: Tensor) -> None:
        CHOSEN[how](pages, index)

    with torch.inference_mode(inference):
        pair = Pair()
        pair.device.launch(pair.one, fill, pair.rows[1:3])
        pair.device.launch(pair.two, choose, pair.rows, torch.tensor(rows))
        assert bool(pair.finish()) == (rows == [1])


VIEWS: dict[str, Callable[[Tensor], object]] = {
    "flatten": lambda x: x.flatten(),
    "reshape": lambda x: x.reshape(2, 4),
    "chunk": lambda x: x.chunk(2),
    "unbind": lambda x: x.unbind(),
    "to its own type": lambda x: x.to(torch.float32),
    "contiguous": lambda x: x.contiguous(),
    "movedim": lambda x: x.movedim(0, 1),
}
COPIES: dict[str, Callable[[Tensor], object]] = {
    "flatten": lambda x: x.T.flatten(),
    "reshape": lambda x: x.T.reshape(4, 2),
}
"""Others are among the reads of `test_simulated_accesses`."""


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(
    ("looks", "touches"), [*((f, False) for f in VIEWS.values()), *((f, True) for f in COPIES.values())]
)
def test_views_touch_nothing_and_copies_read(looks: Callable[[Tensor], object], touches: bool, inference: bool):
    def view(rows: Tensor) -> None:
        looks(rows)

    with torch.inference_mode(inference):
        rows = torch.zeros(4, 2)
    assert bool(races_of([(fill, rows), (view, rows)], inference)) == touches


def test_pages_reused_while_a_consumer_reads_are_reported_by_their_name():
    pair = Pair()
    pages, out = torch.zeros(3, 2, 2), torch.zeros(2, 2)
    device = pair.device
    device.launch(pair.one, store, pages, torch.tensor([2, 3]), torch.ones(2, 2))
    pair.order()
    device.launch(pair.two, gather, pages, torch.tensor([2, 3]), out)
    device.launch(pair.one, store, pages, torch.tensor([4, 5]), torch.ones(2, 2))
    assert not pair.finish()
    device.launch(pair.two, gather, pages, torch.tensor([4]), out[:1])
    device.launch(pair.one, store, pages, torch.tensor([5, 1]), torch.ones(2, 2))
    assert not pair.finish()
    device.launch(pair.two, gather, pages, torch.tensor([1]), out[:1])
    device.launch(pair.one, store, pages, torch.tensor([0, 1]), torch.ones(2, 2))
    (race,) = pair.finish()
    assert race.buffer.startswith("pages")
    assert race.byte == 1 * 2 * 4


def slot_of(device: SimulatedDevice) -> HostSlot:
    return HostRing.allocate(device, (4,), torch.int64, slots=1).advance()


def test_a_host_slot_rewritten_under_its_copy_is_reported_in_any_order():
    for first in (True, False):
        device = SimulatedDevice()
        stream, slot, target = device.stream("copies"), slot_of(device), torch.zeros(4, dtype=torch.int64)
        slot.take()[:] = 1
        device.launch(stream, copy, target, slot.tensor)
        slot.guard(device.record(device.stream("another")))
        device.run({"another", *(["copies"] if first else [])})
        slot.take()[:] = 2
        device.synchronize()
        (race,) = device.races
        assert {race.first.operation, race.second.operation} == {"copy_", "HostSlot.take"}
        assert "the host writes by HostSlot.take" in str(race)


def test_a_host_slot_read_before_its_copy_is_reported():
    device = SimulatedDevice()
    stream, slot = device.stream("copies"), slot_of(device)
    slot.take()
    before = device.record(stream)
    device.launch(stream, copy, slot.tensor, torch.ones(4, dtype=torch.int64))
    slot.guard(before)
    device.run()
    assert np.array_equal(slot.read(), [1, 1, 1, 1]), "by luck"
    (race,) = device.races
    assert (race.first.by, race.second.by, race.second.operation) == ("copy", "the host", "HostSlot.read")
    assert race.buffer == "a host slot (int64 [4])"


def test_host_slots_used_by_the_rules_are_not_reported():
    device = SimulatedDevice()
    stream, slot, rows = device.stream("copies"), slot_of(device), torch.zeros(4, dtype=torch.int64)
    for turn in range(3):
        slot.take()[:] = turn
        device.launch(stream, copy, rows, slot.tensor)
        slot.guard(device.record(stream))
        device.run()
        assert slot.free
        slot.take()
        device.launch(stream, copy, slot.tensor, rows)
        slot.guard(device.record(stream))
        device.run()
        assert np.array_equal(slot.read(), [turn] * 4)
    device.assert_no_races()


@pytest.mark.parametrize("late", [False, True])
def test_a_host_write_into_a_slot_after_the_launch_is_reported(late: bool):
    """It writes as to any numpy array; on a device the copy may have been made or not."""
    device = SimulatedDevice()
    stream, slot, rows = device.stream("copies"), slot_of(device), torch.zeros(4, dtype=torch.int64)
    array = slot.take()
    array[:] = 1
    if not late:
        array[2] = 5
    device.launch(stream, copy, rows, slot.tensor)
    if late:
        array[2] = 5
    slot.guard(device.record(stream))
    device.run()
    slot.take()[:] = 7  # handed out again, it may be written
    if not late:
        device.assert_no_races()
        return
    (race,) = device.races
    assert (race.first.by, race.second.by, race.byte) == ("the host", "copy", 16)
    assert "the host writes by the slot's array, after the launch" in str(race)
    assert race.buffer == "source (int64 [4])"


def test_a_slot_that_phases_write_one_after_the_other_is_theirs_to_change():
    device = SimulatedDevice()
    stream, slot = device.stream("copies"), slot_of(device)
    slot.take()
    for value in (1, 2):
        device.launch(stream, copy, slot.tensor, torch.full((4,), value))
    slot.guard(device.record(stream))
    device.assert_no_races()
    assert slot.free
    assert slot.read().tolist() == [2] * 4


@pytest.mark.parametrize("how", ["not at all", "by a wait", "by the host"])
def test_memory_given_back_unknown_to_its_reader_is_reported(how: str):
    """The host gives memory of one stream back while another reads it, with or without that stream's knowledge."""
    device = SimulatedDevice()
    home, reader = device.stream("home"), device.stream("reader")
    rows = device.empty((8,), torch.float32, home)
    device.launch(home, fill, rows)
    device.wait(reader, device.record(home))
    device.launch(reader, look, rows)
    end = device.record(reader)
    if how == "by a wait":
        device.wait(home, end)
    if how == "by the host":
        device.run()
        assert end.done()
    del rows
    device.synchronize()
    found = [(race.first.by, race.second.operation) for race in device.races]
    assert found == [("look", "giving it back to stream 'home'")] * (how == "not at all")


def test_fresh_memory_is_for_its_stream_alone():
    device = SimulatedDevice()
    home, other = device.stream("home"), device.stream("other")
    device.launch(home, look, torch.zeros(2))
    rows = device.empty((8,), torch.float32, home)
    device.launch(other, fill, rows)
    device.synchronize()
    assert ["the earlier work of stream 'home'" in str(race) for race in device.races] == [True]
