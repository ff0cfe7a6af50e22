"""Rows and rings that are full, and frames that their producer moves."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni.connector import Ref
from omni.device import COMPLETED, Event
from omni.device.cpu import CpuDevice
from omni.payload import PageSlice
from omni.stage import Done, Feed
from omni.testing.simulation.late import QueuedDevice
from omni_frames.request import ArrivedFrames, FrameRequest, RowQueue
from omni_frames.store import FrameStore
from tests.stages.omni_frames.adder import Bench
from tests.support.frame_bench import POISON, frames, random_codes


def test_a_free_row_goes_to_the_first_waiting_request_in_order() -> None:
    bench = Bench(CpuDevice(), rows=1)
    orders = {"first": (9, 0), "late": (1, 1), "b": (0, 3), "a": (0, 2), "urgent": (-1, 4)}
    for name, order in orders.items():
        bench.open(name, order=order)
        bench.feed_pages(name, random_codes(2))
        bench.tick()
    bench.end(*orders)
    bench.settle(bench.device)
    assert list(bench.ends) == ["first", "urgent", "a", "b", "late"]


def test_a_request_that_leaves_has_no_row() -> None:
    rows: RowQueue[FrameRequest] = RowQueue(1)
    first, second = FrameRequest("a", set()), FrameRequest("b", set())
    for request in (first, second):
        rows.join(request)
    rows.allocate()
    rows.leave(first)
    assert first.row is None
    assert rows.allocate()
    assert list(rows.owners) == [second]


def test_more_requests_than_rows_take_turns_and_keep_their_leases() -> None:
    bench = Bench(CpuDevice(), rows=1)
    codes = {name: random_codes(5, seed) for seed, name in enumerate("abc")}
    bench.open("idle", *codes)
    refs = {name: bench.feed_pages(name, rows) for name, rows in codes.items()}
    bench.settle(bench.device)
    assert {name: ref.freed for name, ref in refs.items()} == {"a": True, "b": False, "c": False}
    assert bench.held == {"requests": 4, "rows": 1, "leases": 2}
    bench.abort("b")
    bench.end("a", "c", "idle")
    bench.settle(bench.device)
    bench.expect_sums("a", codes["a"])
    bench.expect_sums("c", codes["c"])
    assert bench.ends["idle"] == Done("idle", "empty", {"frames": 0, "samples": 0})
    assert refs["b"].freed
    assert not bench.held


def test_a_full_ring_keeps_the_lease_until_the_rest_fits() -> None:
    device = QueuedDevice()
    bench = Bench(device)  # a row's ring has 8 frames
    codes = random_codes(13)
    bench.open("a")
    early, late = bench.feed_pages("a", codes[:11]), bench.feed_pages("a", codes[11:])
    bench.end("a")
    bench.tick()
    assert bench.held == {"requests": 1, "rows": 1, "leases": 2, "frames": 6, "batches": 1}
    bench.tick()
    assert bench.held["frames"] == 8
    assert not bench.tick()
    device.synchronize()
    freed = [early.freed]
    bench.tick()
    device.synchronize()
    bench.tick()
    freed.append(late.freed)
    bench.settle(device)
    assert [*freed, early.freed, late.freed] == [False, False, True, True]
    bench.expect_sums("a", codes)


class Producer:
    """Moves a slice now and then, and overwrites the old rows as soon as the contract lets it."""

    def __init__(self, device: QueuedDevice, part: PageSlice, ref: Ref) -> None:
        self._device = device
        self._stream = device.stream("talker")
        self._part = part
        self._ref = ref
        self._old: list[tuple[torch.Tensor, torch.Tensor, tuple[Event, Event]]] = []

    def move(self) -> None:
        """Only while the consumer may still gather."""
        if self._ref.released:
            return
        pages, slots_n = self._part.pages, torch.from_numpy(self._part.slots)
        place = torch.full((1, slots_n.numel(), pages.shape[-1]), POISON)
        self._device.launch(self._stream, move_rows, pages, slots_n, place)
        moved = self._device.record(self._stream)
        readers = self._part.relocate(place, np.arange(slots_n.numel()), moved)
        self._old.append((pages, slots_n, (moved, readers)))

    def reuse(self) -> None:
        free = [old for old in self._old if all(event.done() for event in old[2])]
        for pages, slots_n, _ in free:
            pages.flatten(0, 1)[slots_n] = POISON
        self._old = [old for old in self._old if not any(old is other for other in free)]


def move_rows(pages: torch.Tensor, slots_n: torch.Tensor, place: torch.Tensor) -> None:
    place[0].copy_(pages.flatten(0, 1).index_select(0, slots_n))


@settings(max_examples=40)
@given(data=st.data())
def test_frames_that_their_producer_moves_are_read_where_they_are(data: st.DataObject) -> None:
    """More frames than the row's ring holds, so a slice is gathered in parts, from several places."""
    device = QueuedDevice()
    bench = Bench(device)
    codes = random_codes(24)
    bench.open("a")
    producers = []
    for part_codes in np.split(codes, [data.draw(st.integers(1, 23))]):
        part = bench.slice(part_codes)
        producers.append(Producer(device, part, bench.feed("a", frames(part))))
    bench.end("a")
    for _ in range(data.draw(st.integers(1, 30))):
        producer = data.draw(st.sampled_from(producers))
        if data.draw(st.integers(0, 3)) == 0:
            producer.move()
        bench.tick()
        stream = data.draw(st.sampled_from(["adder", "adder-copy", "talker"]))
        device.run({stream}, operations=data.draw(st.integers(0, 6)))
        for producer in producers:
            producer.reuse()
    bench.settle(device)
    bench.expect_sums("a", codes)
    assert not bench.held


RING = 4
"""Uploads that may be under way."""


def request(codes: np.ndarray) -> FrameRequest:
    made = FrameRequest("r", set())
    made.row = 0
    # Codes of the host are uploaded, those on the device mostly not.
    made.arrivals.append(ArrivedFrames(Feed("r", frames(torch.from_numpy(codes)), COMPLETED), codes, len(codes)))
    return made


def test_a_store_whose_uploads_are_all_in_flight_takes_nothing():
    device = QueuedDevice()
    store = FrameStore(device, device.stream("vocoder"), rows=1, capacity=16, groups=2)
    codes = np.arange(2).reshape(1, 2)
    asking = [request(codes) for _ in range(RING + 1)]
    assert [store.take([one]) for one in asking] == [(True, {})] * RING + [(False, {})]
    assert [len(one.arrivals) for one in asking] == [0] * RING + [1]
    device.synchronize()
    assert store.take([asking[-1]]) == (True, {})
    assert store.take([asking[-1]]) == (False, {}), "there is nothing left"
