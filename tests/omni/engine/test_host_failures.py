"""Copies into host memory that fail half-way, on a device that is late: what was launched still reads the producer's memory."""

from contextlib import suppress

import pytest
from torch import Tensor

from omni.device import COMPLETED
from omni.payload import PageSlice
from tests.support.faults import LateFaultyDevice, write_over
from tests.support.host_bench import HostBench, Sent

SIZES = {"in a slot": {"slots": 2, "slot_bytes": 512}, "in pieces": {"slots": 0, "slot_bytes": 256, "piece_bytes": 64}}


def hidden(sent: Sent) -> PageSlice:
    part = sent.payload.tensors["hidden"]
    assert isinstance(part, PageSlice)
    return part


def failed(seed: int, way: str, after: bool) -> tuple[LateFaultyDevice, HostBench, Sent]:
    """A payload of which a copy has failed: its launch, or, with `after`, what follows it."""
    device = LateFaultyDevice(seed)
    edge = HostBench(device, **SIZES[way])
    sent = edge.send(7, scattered=True)
    device.fail("copy_rows" if way == "in a slot" else "gather_rows", int(way == "in pieces"), after=after)
    for _ in range(1000):
        device.host_step()
        if device.faults:
            return device, edge, sent
        with suppress(ValueError):
            edge.poll()
    raise AssertionError("no copy failed")


@pytest.mark.parametrize("way", SIZES)
@pytest.mark.parametrize("after", [False, True], ids=["instead", "after"])
@pytest.mark.parametrize("seed", range(4))
def test_rows_moved_after_a_failed_copy_keep_their_old_place_for_the_copy(seed: int, way: str, after: bool) -> None:
    """Another consumer of the payload still holds it, so its producer may move it and no release tells it more."""
    device, edge, sent = failed(seed, way, after)
    old = hidden(sent).pages
    edge.move(sent)
    ((memory, events),) = sent.places
    assert memory is old
    while not all(event.done() for event in events):
        device.host_step()
    device.launch(edge.producer, write_over, old)
    device.assert_no_races()
    assert device.faults == 1


@pytest.mark.parametrize("way", SIZES)
@pytest.mark.parametrize("after", [False, True], ids=["instead", "after"])
@pytest.mark.parametrize("seed", range(4))
def test_the_producer_has_its_memory_back_after_what_was_launched(seed: int, way: str, after: bool) -> None:
    """The request fails, and its payload is given up. The next one gets the slot, and the right rows."""
    device, edge, sent = failed(seed, way, after)
    edge.abort(sent)
    following = [edge.send(rows, scattered=True) for rows in (5, 3)]
    memory = [tensor for tensor in (hidden(sent).pages, sent.payload.tensors["plain"]) if isinstance(tensor, Tensor)]
    for _ in range(3000):
        device.host_step()
        edge.poll()
        if memory and sent.ref.freed:
            for tensor in memory:
                device.launch(edge.producer, write_over, tensor)
            memory = []
        for one in following:
            if one.readable and not one.over:
                edge.expect(one)
                edge.release(one, COMPLETED)
    assert not memory
    assert all(one.over for one in following)
    device.assert_no_races()
    assert device.faults == 1
