"""The device seam: launches, events, rings of host slots, packed uploads, and choosing a device."""

from contextvars import ContextVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omni.device import COMPLETED, Device, Graph, HostRing, Launch, SharedRing, Stream, Uploader, open_device
from omni.device.cpu import CpuDevice
from omni.device.cuda import CudaGraph
from omni.device.select import name_device
from omni.device.sync_operators import Copy
from omni.errors import ConfigError
from omni.testing.simulation.late import QueuedDevice


def add_one(rows: torch.Tensor) -> None:
    rows.add_(1)


def fail(rows: torch.Tensor) -> None:
    raise ValueError("no")


def test_a_phase_has_its_name_while_it_is_launched_and_none_afterwards():
    device = CpuDevice()
    seen: list[str | None] = []

    def look() -> None:
        seen.append(device.launching)
        device.zeros((1,), torch.int64)
        seen.append(device.launching)

    device.launch(device.stream("s"), look)
    assert seen == ["look", "look"]
    assert device.launching is None


def test_an_error_names_its_phase_and_the_device_stays_usable():
    device = CpuDevice()
    stream, rows = device.stream("s"), torch.zeros(2)
    with pytest.raises(ValueError, match="no") as caught:
        device.launch(stream, fail, rows)
    assert caught.value.__notes__ == ["in phase fail"]
    assert device.launching is None
    device.launch(stream, add_one, rows)
    assert rows.tolist() == [1, 1]


def test_a_graph_replays_its_launches_in_order_on_its_own_buffers():
    device = CpuDevice()
    stream, rows = device.stream("s"), torch.zeros(2)

    def double(rows: torch.Tensor) -> None:
        assert device.launching == "double"
        rows.mul_(2)

    with torch.inference_mode():
        graph = device.capture(stream, "both", [Launch.of(add_one, rows), Launch.of(double, rows)])
        rows.fill_(3)
        device.replay(stream, graph)
        assert rows.tolist() == [8, 8]
        device.replay(stream, graph)
    assert rows.tolist() == [18, 18]
    assert graph.name == "both"


def test_zeros_are_zero_and_empty_has_its_shape():
    device = CpuDevice()
    assert device.zeros((2, 1), torch.float32).tolist() == [[0.0], [0.0]]
    assert device.empty((3, 0, 2), torch.int64, device.stream("s")).shape == (3, 0, 2)


def test_a_ring_hands_out_slots_in_turn_once_their_events_are_done():
    device = QueuedDevice()
    stream = device.stream("s")
    ring = HostRing.allocate(device, (2,), torch.int64, slots=2)
    first, second = ring.advance(), ring.advance()
    for slot in (first, second):
        slot.take()[:] = 7
        slot.guard(device.record(stream))
    ready = [ring.ready]
    with pytest.raises(RuntimeError, match="reused while the device may still use it"):
        ring.advance().take()
    device.synchronize()
    assert [*ready, ring.ready, first.free] == [False, True, True]
    assert ring.advance() is second


def test_a_slot_is_read_only_after_the_copy_into_it():
    device = QueuedDevice()
    stream, rows = device.stream("s"), torch.tensor([5, 6])
    slot = HostRing.allocate(device, (2,), torch.int64, slots=1).advance()

    def copy() -> None:
        slot.tensor.copy_(rows)

    device.launch(stream, copy)
    slot.guard(device.record(stream))
    with pytest.raises(RuntimeError, match="read before the device had written it"):
        slot.read()
    device.synchronize()
    assert np.array_equal(slot.read(), [5, 6])


@pytest.mark.parametrize("name", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_host_reads_shared_memory_of_phases_without_a_copy(name: str):
    device = open_device(name)
    stream, memory = device.stream("s"), device.shared((2, 3), torch.int64)
    assert not memory.host.any()
    assert (memory.host.device.type, memory.device.device.type) == ("cpu", name)
    assert memory.device.data_ptr() == memory.host.data_ptr()

    def write(rows: torch.Tensor) -> None:
        rows[1].fill_(7)

    device.launch(stream, write, memory.device)
    event = device.record(stream)
    while not event.done():
        pass
    assert memory.host.tolist() == [[0, 0, 0], [7, 7, 7]]


def test_a_shared_ring_hands_over_the_slot_of_the_turn():
    device = QueuedDevice()
    stream, memory = device.stream("s"), device.shared((2, 1), torch.int64)
    ring = SharedRing(device, stream, memory)

    def write(rows: torch.Tensor, turn: int, number: int) -> None:
        rows[turn].fill_(number)

    sent = []
    for number in (5, 6):
        assert ring.ready
        device.launch(stream, write, memory.device, ring.next_slot, number)
        sent.append(ring.send())
    device.launch(stream, write, torch.zeros(1, 1), 0, 0)
    ready = [ring.ready]
    with pytest.raises(RuntimeError, match="read before the device had written it"):
        sent[0].slot.read()
    device.run({"s"}, operations=4)
    assert [one.slot.read().tolist() for one in sent] == [[5], [6]]
    ready.append(ring.ready)
    sent[0].slot.release()
    assert [*ready, ring.ready] == [False, False, True], "what follows the second is not waited for"
    assert ring.next_slot == 0


def test_a_step_that_failed_leaves_nothing_to_be_read():
    device = CpuDevice()
    ring = SharedRing(device, device.stream("s"), device.shared((1, 1), torch.int64))
    ring.begin()
    ring.send()
    assert not ring.ready
    with pytest.raises(RuntimeError, match="whose slot the host has not read"):
        ring.begin()
    ring.forget()
    ring.begin()


def test_a_slot_that_is_handed_out_is_not_free():
    slot = HostRing.allocate(CpuDevice(), (1,), torch.int64, slots=1).advance()
    free = [slot.free]
    slot.take()
    free.append(slot.free)
    slot.guard(COMPLETED)
    assert [*free, slot.free] == [True, False, True]


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cpu:0", "", "cuda:-1", "cuda:99"])
def test_a_device_that_cannot_be_is_refused(name: str):
    with pytest.raises(ConfigError, match="device: "):
        open_device(name)


def test_the_cpu_is_opened_by_name():
    assert open_device("cpu").torch_device.type == "cpu"


@pytest.fixture
def cuda() -> Device:
    return open_device("cuda")


@pytest.mark.gpu
def test_an_event_is_done_when_the_work_before_it_is(cuda: Device):
    stream, other = cuda.stream("s"), cuda.stream("t", priority=-1)
    rows = cuda.zeros((1 << 20,), torch.float32)
    cuda.synchronize()  # zeros are written on the default stream, which no other waits for
    for _ in range(200):
        cuda.launch(stream, add_one, rows)
    event = cuda.record(stream)
    cuda.wait(other, event)
    host = cuda.host_tensor((1 << 20,), torch.float32)
    assert host.is_pinned()

    def copy() -> None:
        host.copy_(rows, non_blocking=True)

    cuda.launch(other, copy)
    copied = cuda.record(other)
    cuda.synchronize()
    assert event.done()
    assert copied.done()
    assert host.min() == host.max() == 200


@pytest.mark.gpu
def test_phases_run_before_their_first_capture_alone(cuda: Device):
    stream = cuda.stream("s")
    sizes = [torch.zeros(size, device=cuda.torch_device) for size in (4, 2)]
    first, second = (cuda.capture(stream, "add", [Launch.of(add_one, rows)]) for rows in sizes)
    assert [rows.tolist() for rows in sizes] == [[1] * 4, [0] * 2]
    for _ in range(2):
        cuda.replay(stream, first)
    cuda.replay(stream, second)
    cuda.synchronize()
    assert [rows.tolist() for rows in sizes] == [[3] * 4, [1] * 2]


@pytest.mark.gpu
def test_phases_of_a_size_that_cannot_be_captured_at_once_run_first(cuda: Device):
    """A library may wait for the device when it first sees a size."""
    stream, seen = cuda.stream("s"), set[int]()

    def add_late(rows: torch.Tensor) -> None:
        if rows.shape[0] not in seen:
            seen.add(rows.shape[0])
            torch.cuda.synchronize()
        rows.add_(1)

    sizes = [torch.zeros(size, device=cuda.torch_device) for size in (4, 2)]
    graphs = [cuda.capture(stream, "add", [Launch.of(add_late, rows)]) for rows in sizes]
    for graph in graphs:
        cuda.replay(stream, graph)
    cuda.synchronize()
    assert [rows.tolist() for rows in sizes] == [[2] * 4, [2] * 2]


Deferred = tuple[Device, Stream, list[torch.Tensor], list[Graph]]


@pytest.fixture
def deferred(cuda: Device) -> Deferred:
    """A device that defers captures, a stream, and graphs that add one to rows, of three sizes: the capture of the largest is not
    deferred, since it runs first."""
    stream = cuda.stream("s")
    sizes = [torch.zeros(size, device=cuda.torch_device) for size in (4, 3, 2)]
    cuda.defer_captures()
    return cuda, stream, sizes, [cuda.capture(stream, "add", [Launch.of(add_one, rows)]) for rows in sizes]


@pytest.mark.gpu
@pytest.mark.parametrize("captures", [0, 1, 2])
def test_a_deferred_capture_is_made_when_asked_for_or_at_its_first_replay(deferred: Deferred, captures: int):
    cuda, stream, sizes, graphs = deferred
    assert [graph.parts is None for graph in graphs if isinstance(graph, CudaGraph)] == [False, True, True]
    for _ in range(captures):
        assert cuda.capture_deferred()
    for _ in range(2):
        for graph in graphs:
            cuda.replay(stream, graph)
    cuda.synchronize()
    # The first one ran before its capture.
    assert [rows.tolist() for rows in sizes] == [[3] * 4, [2] * 3, [2] * 2]
    assert not cuda.capture_deferred()
    assert all(graph.parts is not None for graph in graphs if isinstance(graph, CudaGraph))


@pytest.mark.gpu
def test_small_deferred_sizes_come_first_and_dropped_graphs_never(deferred: Deferred):
    cuda, _, _, graphs = deferred
    assert cuda.capture_deferred()
    assert [graph.parts is None for graph in graphs if isinstance(graph, CudaGraph)] == [False, True, False]
    del graphs[1]
    assert not cuda.capture_deferred()


@pytest.mark.gpu
def test_a_deferred_capture_keeps_the_context_of_its_call(cuda: Device):
    stream, setting, seen = cuda.stream("s"), ContextVar("setting", default=0), list[int]()

    def note(rows: torch.Tensor) -> None:
        seen.append(setting.get())
        rows.add_(1)

    rows = torch.zeros(2, device=cuda.torch_device)
    cuda.defer_captures()
    cuda.capture(stream, "note", [Launch.of(note, rows)])
    token = setting.set(1)
    graph = cuda.capture(stream, "note", [Launch.of(note, rows)])
    setting.reset(token)
    seen.clear()
    cuda.replay(stream, graph)
    assert seen == [1]


@pytest.mark.gpu
def test_launches_whose_deferred_capture_fails_are_made_one_by_one(cuda: Device, caplog: pytest.LogCaptureFixture):
    stream = cuda.stream("s")

    def add_waiting(rows: torch.Tensor) -> None:
        if rows.shape[0] == 2:
            torch.cuda.synchronize()
        rows.add_(1)

    sizes = [torch.zeros(size, device=cuda.torch_device) for size in (4, 2)]
    cuda.defer_captures()
    graphs = [cuda.capture(stream, f"add-{len(rows)}", [Launch.of(add_waiting, rows)]) for rows in sizes]
    for _ in range(2):
        for graph in graphs:
            cuda.replay(stream, graph)
    cuda.synchronize()
    assert [rows.tolist() for rows in sizes] == [[3] * 4, [2] * 2]
    assert caplog.text.count("add-2 runs uncaptured, since its capture failed") == 1


@pytest.mark.gpu
def test_host_memory_is_the_host_s_where_models_are_built(cuda: Device):
    with torch.device(cuda.torch_device):
        tensor = cuda.host_tensor((3,), torch.uint8)
    assert tensor.is_pinned()
    assert tensor.device.type == "cpu"


@pytest.mark.parametrize(
    ("name", "there", "device"),
    [
        (None, False, torch.device("cpu")),
        (None, True, torch.device("cuda", 0)),
        ("cpu", True, torch.device("cpu")),
        ("cuda", False, torch.device("cuda", 0)),
        ("cuda:3", False, torch.device("cuda", 3)),
    ],
)
def test_a_name_stands_for_one_device(
    name: str | None, there: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert name_device(name) == device


@pytest.mark.parametrize(("non_blocking", "waits"), [(True, False), (False, True)])
def test_a_copy_to_memory_that_torch_makes_waits_only_if_it_is_asked_to(non_blocking: bool, waits: bool):
    """Such memory is pinned. A meta tensor stands for one on the device: all that is asked is where it is."""
    source = torch.empty(2, device="meta")
    assert Copy(source, None, torch.device("cpu"), non_blocking).waits == waits
    assert Copy(source, torch.empty(2), torch.device("cpu"), non_blocking).waits, "this memory is pageable"


@given(st.lists(st.lists(st.integers(-(2**62), 2**62), max_size=6), min_size=1, max_size=5))
def test_the_device_sees_the_packed_arrays(arrays: list[list[int]]):
    device = QueuedDevice()
    uploader = Uploader(device, device.stream("ar"), capacity=30, slots=2)
    upload = uploader.begin()
    spans = [upload.add(np.array(array, np.int64)) for array in arrays]
    floats = upload.add_floats(np.array([0.1, -3.5], np.float64)) if upload.size <= 28 else None
    uploader.launch(upload)
    device.synchronize()
    assert [uploader.view(span).tolist() for span in spans] == arrays
    if floats is not None:
        assert uploader.view(floats).view(torch.float64).tolist() == [0.1, -3.5]


def test_more_than_fits_is_refused_and_the_slot_can_be_given_back():
    device = QueuedDevice()
    uploader = Uploader(device, device.stream("ar"), capacity=4, slots=1)
    upload = uploader.begin()
    with pytest.raises(RuntimeError, match="take 5 values, the upload buffer has 4"):
        upload.add(np.zeros(5, np.int64))
    assert not uploader.ready
    uploader.cancel(upload)
    assert uploader.ready


def test_a_slot_is_not_taken_again_before_its_copy_is_over():
    device = QueuedDevice()
    uploader = Uploader(device, device.stream("ar"), capacity=4, slots=2)
    for _ in range(2):
        uploader.launch(uploader.begin())
    assert not uploader.ready
    with pytest.raises(RuntimeError, match="the ring is too small"):
        uploader.begin()
    device.synchronize()
    assert uploader.ready
