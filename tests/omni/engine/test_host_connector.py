"""Payload arrives in host memory whole, its memory is given back exactly after the last read, and requests do not wait for each
other."""

import math
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni.connector import Pending, Received
from omni.connector.pieces import cut, parts_of
from omni.device import COMPLETED, Event
from omni.device.cpu import CpuDevice
from omni.engine.host import MAX_ROWS, HostReceiver
from omni.payload import PageSlice, Payload
from omni.testing import SimulatedDevice
from omni.testing.connectors import Gate
from omni.testing.faults import FaultyStirredDevice, PlantedError, write_over
from omni.testing.simulation.late import QueuedDevice
from omni_local.connector import LocalReceiver, LocalSender
from tests.support.fake_graph import lent
from tests.support.host_bench import BLOCK, HostBench, Numbered, Sent, expect_late, play
from tests.support.received import tensors_of

HOST, WRITER = "writer->host_reader-host", "writer"
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]


@pytest.fixture
def device() -> QueuedDevice:
    return QueuedDevice()


@st.composite
def payloads(draw: st.DrawFn) -> Payload:
    tensors: dict[str, torch.Tensor | PageSlice] = {}
    for index in range(draw(st.integers(0, 3))):
        dtype = draw(st.sampled_from(DTYPES))
        numbers = torch.from_numpy(np.random.default_rng(index).integers(0, 100, (3, BLOCK, 6)))
        if draw(st.booleans()):
            slots = draw(st.lists(st.integers(0, 3 * BLOCK - 1), max_size=9))
            tensors[str(index)] = PageSlice(numbers.to(dtype), np.array(slots, np.int64))
        else:
            shape = draw(st.lists(st.integers(0, 4), max_size=3))
            whole = numbers.to(dtype).flatten()[: math.prod(shape)].view(shape)
            tensors[str(index)] = whole.transpose(0, -1) if draw(st.booleans()) and len(shape) > 1 else whole
    return Payload(Numbered(number=1), tensors)


@given(payload=payloads(), slot_bytes=st.sampled_from([64, 512, 4096]), piece_bytes=st.sampled_from([16, 32, 64, 4096]))
def test_tensors_of_every_dtype_and_shape_come_whole(payload: Payload, slot_bytes: int, piece_bytes: int) -> None:
    device = CpuDevice()
    receiver = HostReceiver(LocalReceiver(), device, "edge", slots=1, slot_bytes=slot_bytes, piece_bytes=piece_bytes)
    ref = LocalSender().send(payload, COMPLETED)
    (piece,) = ref.pieces()
    pending = receiver.receive(piece)
    received = pending.poll()
    while received is None:
        received = pending.poll()
    assert received.ready.done()
    assert received.payload.meta is payload.meta
    assert list(received.payload.tensors) == list(payload.tensors)
    for name, tensor in payload.tensors.items():
        wanted = tensor.rows(torch.from_numpy(tensor.slots)) if isinstance(tensor, PageSlice) else tensor
        found = received.payload.tensors[name]
        assert isinstance(found, torch.Tensor)
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert torch.equal(found, wanted)
    pending.release(COMPLETED)
    assert ref.freed


@given(
    rows=st.integers(1, 20),
    width=st.integers(1, 40),
    most=st.sampled_from([16, 48, 160]),
    most_rows=st.integers(1, 6),
    paged=st.booleans(),
)
def test_pieces_cover_every_byte_once_and_keep_their_bounds(
    rows: int, width: int, most: int, most_rows: int, paged: bool
) -> None:
    tensor = PageSlice(torch.zeros(rows, 1, width), np.arange(rows)) if paged else torch.zeros(rows, width)
    (part,), nbytes = parts_of(Payload(Numbered(number=1), {"a": tensor}))
    pieces = list(cut(part, most, most_rows))
    assert all(piece.nbytes <= most and (piece.shape[0] <= most_rows or not paged) for piece in pieces)
    bounds = [(piece.start, piece.start + piece.nbytes) for piece in pieces]
    assert bounds == sorted(bounds)
    assert [end for _, end in bounds[:-1]] == [start for start, _ in bounds[1:]]
    assert (bounds[0][0], bounds[-1][1]) == (0, rows * width * 4)
    assert nbytes >= rows * width * 4


def test_a_payload_without_tensors_takes_no_copy_and_no_slot(device: QueuedDevice) -> None:
    receiver = HostReceiver(LocalReceiver(), device, "edge", slots=0)
    ref = LocalSender().send(Payload(Numbered(number=5)), COMPLETED)
    (piece,) = ref.pieces()
    pending = receiver.receive(piece)
    received = pending.poll()
    assert received is not None
    assert received.payload == Payload(Numbered(number=5))
    assert not ref.released
    pending.release(COMPLETED)
    assert ref.freed
    assert not device.pending


def test_a_tensor_of_many_rows_goes_into_a_slot(device: QueuedDevice) -> None:
    """Only rows of page slices are limited: their slots are uploaded."""
    receiver = HostReceiver(LocalReceiver(), device, "edge")
    many = torch.arange(MAX_ROWS + 1, dtype=torch.uint8)
    (piece,) = LocalSender().send(Payload(Numbered(number=1), {"a": many}), COMPLETED).pieces()
    pending = receiver.receive(piece)
    received = pending.poll()
    assert received is not None, "it does not pass in pieces"
    device.run()
    assert received.ready.done()
    assert torch.equal(tensors_of(received.payload)["a"], many)
    pending.release(COMPLETED)


def test_rows_that_follow_one_another_need_no_upload(device: QueuedDevice) -> None:
    bench = HostBench(device)
    for scattered in (False, True):
        bench.send(3, scattered=scattered)
    bench.step()
    device.run()
    (stream,) = (stream for stream in device.streams if stream.name == HOST)
    assert stream.ran == ["gather_rows", "copy_rows", "copy_upload", "gather_rows", "copy_rows"]


def test_a_slot_is_used_again_once_its_consumer_is_done_and_not_before(device: QueuedDevice) -> None:
    bench = HostBench(device, slots=1)
    first = bench.send(2)
    bench.step()
    device.run()
    gate = Gate()
    bench.release(first, gate)
    second = bench.send(2)
    bench.settle()
    bench.expect(second)
    bench.expect(first)
    gate.open = True
    third = bench.send(2)
    bench.step()
    device.run()
    bench.expect(third)
    with pytest.raises(AssertionError, match="hidden of 0"):
        bench.expect(first)


def test_a_slot_aborted_while_it_is_written_goes_to_the_next(device: QueuedDevice) -> None:
    bench = HostBench(device, slots=1)
    first, second = bench.send(2), bench.send(2)
    device.run()
    first.pending.poll()
    bench.abort(first)
    bench.poll()
    assert second.received is not None
    assert not second.received.ready.done()
    device.run()
    bench.expect(second)
    assert first.ref.freed


def test_a_stream_that_stalls_takes_no_more_than_its_slots(device: QueuedDevice) -> None:
    bench = HostBench(device, slot_bytes=256, piece_bytes=128)
    for rows in [2, 2, 2, 20, 2, 2, 2, 2]:
        bench.send(rows, scattered=True)
    device.run({WRITER})
    for _ in range(3):
        bench.poll()
    assert bench.under_way
    bench.settle()
    device.run()
    for sent in bench.sent:
        bench.expect(sent)


def test_a_consumer_that_keeps_everything_stops_no_other() -> None:
    device = CpuDevice()
    bench = HostBench(device, slots=4)
    kept = [bench.send(2) for _ in range(9)]
    other = [bench.send(5, scattered=True) for _ in range(9)]
    bench.settle()
    for sent in (*kept, *other):
        bench.expect(sent)
        assert sent.ref.freed, "however long it is kept"


def test_more_scattered_rows_than_one_copy_takes() -> None:
    bench = HostBench(CpuDevice(), width=1)
    sent = bench.send(2 * MAX_ROWS + 5, scattered=True)
    bench.settle()
    bench.expect(sent)


def test_a_payload_aborted_before_it_is_ready_is_free_at_once() -> None:
    device = QueuedDevice()
    bench = HostBench(device)
    sent = bench.send(2, write=False)
    bench.poll()
    bench.abort(sent)
    assert sent.ref.freed
    bench.abort(sent)
    following = bench.send(2)
    bench.settle()
    device.run()
    bench.expect(following)


def test_a_cancelled_payload_frees_memory_after_the_copies_that_read_it(device: QueuedDevice) -> None:
    bench = HostBench(device, slots=0, piece_bytes=64)
    first, second = bench.send(10), bench.send(10)
    bench.step()
    bench.abort(first)
    assert first.ref.released
    assert not first.ref.freed
    bench.settle()
    bench.expect(second)
    assert first.ref.freed


@pytest.mark.parametrize("slots", [1, 0])
def test_a_copy_that_cannot_be_launched_fails_its_payload_alone(slots: int) -> None:
    bench = HostBench(CpuDevice(), slots=slots)
    bad = bench.send(2)
    part = bad.payload.tensors["hidden"]
    assert isinstance(part, PageSlice)
    part.pages = part.pages[:0]
    with pytest.raises(RuntimeError, match="size"):
        bad.pending.poll()
    bench.abort(bad)
    assert bad.ref.freed
    good = bench.send(2)
    bench.settle()
    bench.expect(good)


def test_rows_come_whole_on_a_device_that_is_late() -> None:
    for seed in range(20):
        play(device := SimulatedDevice(seed), seed)
        device.assert_no_races()


@settings(max_examples=150)
@given(data=st.data())
def test_any_order_of_events_brings_the_right_rows(data: st.DataObject) -> None:
    """Streams run late and by turns, pages move, consumers are slow, some leave, memory is reused as soon as it may be."""
    device = QueuedDevice()
    sizes = {
        "slots": data.draw(st.integers(0, 3)),
        "slot_bytes": 256,
        "piece_bytes": data.draw(st.sampled_from([64, 128])),
    }
    bench = HostBench(device, **sizes)
    for _ in range(data.draw(st.integers(1, 40))):
        match data.draw(st.sampled_from(["send", "run", "run", "poll", "poll", "move", "abort", "take"])):
            case "send" if len(bench.sent) < 8:
                bench.send(data.draw(st.integers(1, 12)), scattered=data.draw(st.booleans()))
            case "run":
                stream = data.draw(st.sampled_from([WRITER, HOST, "host_reader"]))
                device.run({stream}, operations=data.draw(st.integers(1, 6)))
            case "poll":
                bench.poll()
            case "move" if bench.under_way:
                bench.move(data.draw(st.sampled_from(bench.under_way)))
            case "abort" if bench.under_way:
                bench.abort(data.draw(st.sampled_from(bench.under_way)))
            case "take":
                _take(bench, data)
        bench.reuse()
    _drain(bench, device)


def _take(bench: HostBench, data: st.DataObject) -> None:
    """Reads what can be read and releases it, some of it after work of the consumer's own that reads it once more."""
    for sent in bench.sent:
        if sent.readable and not sent.finished and data.draw(st.booleans()):
            bench.expect(sent)
            after = COMPLETED
            if data.draw(st.booleans()):
                bench.device.launch(bench.consumer, expect_late, bench, sent)
                after = bench.device.record(bench.consumer)
            bench.release(sent, after)


def _drain(bench: HostBench, device: QueuedDevice) -> None:
    while bench.under_way:
        bench.step()
        bench.reuse()
    device.run()
    for sent in bench.sent:
        if not sent.finished:
            bench.expect(sent)
            bench.release(sent)
    device.run()
    assert all(sent.ref.freed for sent in bench.sent)


class Recorded(LocalReceiver):
    """A receiver of one payload. calls: those that end it, and those that it gets itself. busy: set by the test."""

    def __init__(self, received: Received | None) -> None:
        self.calls: list[str] = []
        self._received = received

    def receive(self, piece: object) -> Pending:
        self.calls.append(f"receive {piece}")
        return self

    def add(self, piece: object) -> None:
        self.calls.append(f"add {piece}")

    def poll(self) -> Received | None:
        return self._received

    def release(self, after: Event) -> None:
        self.calls.append("release")

    def abort(self) -> None:
        self.calls.append("abort")

    def discard(self, piece: object) -> None:
        self.calls.append(f"discard {piece}")

    def tick(self) -> None:
        self.calls.append("tick")

    def close(self) -> None:
        self.calls.append("close")


@pytest.mark.parametrize("polled", [False, True], ids=["waiting", "delivered"])
@pytest.mark.parametrize("first", ["release", "abort"])
def test_a_producer_s_memory_is_released_or_given_up_once(first: str, polled: bool) -> None:
    inner = Recorded(Received(lent(0), COMPLETED))
    pending = HostReceiver(inner, CpuDevice(), "edge").receive("first")
    if polled:
        assert pending.poll() is not None, "its copy is launched, so the producer's memory is released"
    for call in (first, "abort"):
        pending.release(COMPLETED) if call == "release" else pending.abort()
    assert inner.calls == ["receive first", "release" if polled else first]


def test_everything_but_payloads_is_the_inner_receiver_s() -> None:
    inner = Recorded(None)
    receiver = HostReceiver(inner, CpuDevice(), "edge")
    pending = receiver.receive("first")
    pending.add("second")
    receiver.discard("other")
    assert pending.poll() is None
    for busy in (False, True):
        inner.busy = busy
        assert receiver.busy == busy
    receiver.tick()
    receiver.close()
    assert inner.calls == ["receive first", "add second", "discard other", "tick", "close"]


# Copies that fail half-way, on a device that is late: launched work still reads the producer's memory.

SIZES = {"in a slot": {"slots": 2, "slot_bytes": 512}, "in pieces": {"slots": 0, "slot_bytes": 256, "piece_bytes": 64}}


def hidden(sent: Sent) -> PageSlice:
    part = sent.payload.tensors["hidden"]
    assert isinstance(part, PageSlice)
    return part


def failed(seed: int, way: str, after: bool) -> tuple[FaultyStirredDevice, HostBench, Sent]:
    """A payload with a failed copy: its launch, or, with `after`, the work after it."""
    device = FaultyStirredDevice(seed)
    edge = HostBench(device, **SIZES[way])
    sent = edge.send(7, scattered=True)
    device.fail("copy_rows" if way == "in a slot" else "gather_rows", int(way == "in pieces"), after=after)
    for _ in range(1000):
        device.host_step()
        if device.failures:
            return device, edge, sent
        with suppress(PlantedError):
            edge.poll()
    raise AssertionError("no copy failed")


@pytest.mark.parametrize("way", SIZES)
@pytest.mark.parametrize("after", [False, True], ids=["instead", "after"])
@pytest.mark.parametrize("seed", range(4))
def test_rows_moved_after_a_failed_copy_keep_their_old_place_for_the_copy(seed: int, way: str, after: bool) -> None:
    """Another consumer of the payload still holds it, so its producer may move it and gets no further release."""
    device, edge, sent = failed(seed, way, after)
    old = hidden(sent).pages
    edge.move(sent)
    ((memory, events),) = sent.places
    assert memory is old
    while not all(event.done() for event in events):
        device.host_step()
    device.launch(edge.producer, write_over, old)
    device.assert_no_races()
    assert device.failures == 1


@pytest.mark.parametrize("way", SIZES)
@pytest.mark.parametrize("after", [False, True], ids=["instead", "after"])
@pytest.mark.parametrize("seed", range(4))
def test_the_producer_has_its_memory_back_after_launched_work(seed: int, way: str, after: bool) -> None:
    """The request fails, and its payload is given up. The next one gets the slot, and the right rows."""
    device, edge, sent = failed(seed, way, after)
    edge.abort(sent)
    following = [edge.send(rows, scattered=True) for rows in (5, 3)]
    memory = [
        tensor for tensor in (hidden(sent).pages, sent.payload.tensors["plain"]) if isinstance(tensor, torch.Tensor)
    ]
    for _ in range(3000):
        device.host_step()
        edge.poll()
        if memory and sent.ref.freed:
            for tensor in memory:
                device.launch(edge.producer, write_over, tensor)
            memory = []
        for one in following:
            if one.readable and not one.finished:
                edge.expect(one)
                edge.release(one, COMPLETED)
    assert not memory
    assert all(one.finished for one in following)
    device.assert_no_races()
    assert device.failures == 1
