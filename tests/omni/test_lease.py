"""Leases of payload memory, and page rows that move while they may be read."""

import numpy as np
import pytest
import torch

from omni.device import COMPLETED
from omni.payload import PageSlice, Payload
from omni.pipeline import Edge
from omni.stage import Feed, Produced
from omni.testing.connectors import Gate
from omni.testing.stages.loan import lend
from tests.support.fake_graph import Note, lent

PAGES = torch.zeros(2, 4, 3)


def made() -> Produced:
    return Produced("r", lent(0), COMPLETED)


def test_a_slice_has_arrived_when_it_was_written_and_wherever_it_was_moved() -> None:
    part, ready, moved = PageSlice(PAGES, np.array([5, 2])), Gate(), Gate()
    feed = Feed("r", Payload(Note(number=0), {"rows": part, "plain": torch.zeros(1)}), ready)
    arrived = [feed.arrived]
    ready.open = True
    arrived.append(feed.arrived)
    part.relocate(torch.ones(1, 2, 3), np.array([0, 1]), moved)
    arrived.append(feed.arrived)
    moved.open = True
    assert [*arrived, feed.arrived] == [False, True, False, True]
    assert float(part.rows(torch.from_numpy(part.slots)).sum()) == 6.0


def test_the_old_place_is_read_until_every_gather_from_it_is_over() -> None:
    part, first, second, later = PageSlice(PAGES, np.array([0])), Gate(), Gate(), Gate()
    assert part.reader.done()
    part.gathered(first)
    part.gathered(second)
    readers = part.relocate(PAGES, np.array([1]), COMPLETED)
    part.gathered(later)
    for gate in (first, second):
        assert not readers.done()
        gate.open = True
    assert readers.done(), "a gather from the new place is none of its business"
    assert not part.reader.done()


def test_released_and_free_differ_while_a_consumer_still_reads() -> None:
    produced, gate = made(), Gate()
    (quick, quick_pending), (slow, slow_pending) = (lend(lent(0)) for _ in range(2))
    for ref in (quick, slow):
        produced.add(ref)
    produced.close()
    assert (produced.released, produced.free) == (False, False)
    quick_pending.release(gate)
    assert (produced.released, produced.free) == (False, False)
    slow_pending.abort()
    assert (produced.released, produced.free) == (True, False)
    gate.open = True
    assert (produced.released, produced.free) == (True, True)


def test_a_payload_that_edges_may_still_take_is_not_released() -> None:
    produced = made()
    assert (produced.released, produced.free) == (False, False)
    produced.close()
    assert (produced.released, produced.free) == (True, True)


def test_a_credit_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="credit must be at least 1"):
        Edge(producer="a", consumer="b", credit=0)
