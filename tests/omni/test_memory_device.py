"""Counting memory on a device, and the device that has none."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from omni.checkpoint import fill_dummy
from omni.device import AllocationCount, Device, open_device
from omni.device.cpu import CpuDevice
from omni.device.meta import MetaDevice
from omni.stage import module_bytes
from omni.testing.simulation.late import QueuedDevice

KIB = 1024


def _floats(kib: int) -> Tensor:
    return torch.zeros(kib * KIB // 4)


def test_a_storage_counts_from_its_making_to_its_last_view() -> None:
    before = _floats(3)
    with AllocationCount(torch.device("cpu")) as count:
        whole = _floats(8)
        part = whole.view(2, -1)[1]
        before.add_(1)
        before.view(3, -1)
        assert (count.live, count.peak) == (8 * KIB, 8 * KIB)
        del whole
        assert count.live == 8 * KIB
        del part
        assert (count.live, count.peak) == (0, 8 * KIB)


@pytest.mark.parametrize("inference", [False, True])
def test_the_peak_is_the_most_that_lives_at_once(inference: bool) -> None:
    with torch.inference_mode(inference), AllocationCount(torch.device("cpu")) as count:
        kept = _floats(4)
        for _ in range(3):
            passing = _floats(16)
            del passing
        other = _floats(2)
    assert count.peak == 20 * KIB
    assert count.live == 6 * KIB
    del kept, other
    assert count.live == 0


def test_parts_of_a_composed_operation_count_in_inference_mode() -> None:
    """The distance of two tensors is a number per row; their difference, as large as they, lives on the way."""
    x = torch.zeros(64, 4, 64)
    with torch.inference_mode(), AllocationCount(torch.device("cpu")) as count:
        distances = F.pairwise_distance(x, x)
    assert count.live == distances.nbytes == x.nbytes // 64
    assert count.peak > x.nbytes


def test_other_devices_are_not_counted() -> None:
    with AllocationCount(torch.device("meta")) as count:
        _floats(4)
        made = torch.zeros(1000, device="meta")
    assert count.live == made.nbytes == 4000


@pytest.mark.parametrize("device", [CpuDevice(), QueuedDevice()], ids=lambda device: type(device).__name__)
def test_the_measured_peak_is_that_of_the_launches(device: Device) -> None:
    stream = device.stream("work")
    results: list[Tensor] = []

    def work(out: list[Tensor]) -> None:
        out.append(_floats(8) + _floats(8))  # three of 8 KiB at once

    def run() -> None:
        device.launch(stream, work, results)
        device.launch(stream, work, results)

    assert device.measure_peak(run) == (8 + 24) * KIB
    assert len(results) == 2


def test_the_host_sets_no_bound() -> None:
    assert CpuDevice().free_memory() is None


def test_the_meta_device_runs_nothing_and_holds_nothing() -> None:
    device = MetaDevice()
    ran: list[str] = []

    def phase(log: list[str]) -> None:
        log.append("ran")

    stream = device.stream("work")
    device.launch(stream, phase, ran)
    assert ran == []
    assert device.record(stream).done()
    assert device.zeros((1 << 50,), torch.float32).device.type == "meta"
    assert device.host_tensor((2,), torch.int64).device.type == "cpu"


def test_random_weights_are_not_drawn_on_the_meta_device() -> None:
    with torch.device("meta"):
        module = nn.Linear(1 << 20, 1 << 20)
    fill_dummy(module, seed=1)
    assert module_bytes(module) == 4 * ((1 << 40) + (1 << 20))


def test_tied_parameters_count_once() -> None:
    first, second = nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False)
    second.weight = first.weight
    module = nn.Sequential(first, second)
    module.register_buffer("table", torch.zeros(7, dtype=torch.int64))
    assert module_bytes(module) == 4 * 100 + 8 * 7


@pytest.mark.gpu
def test_the_allocator_reports_the_peak_on_a_gpu() -> None:
    device = open_device("cuda")
    stream = device.stream("work")
    # Larger than what other tests leave free within segments that they still use, which no peak of segments shows.
    size = 4 * KIB * KIB * KIB

    def work() -> None:
        (torch.zeros(size // 4, device="cuda") + torch.zeros(size // 4, device="cuda")).sum()

    def run() -> None:
        device.launch(stream, work)

    run()
    device.synchronize()
    # Beside ten other programs on the device, none of a hundred was undisturbed.
    for _ in range(2000):
        free = device.free_memory()
        assert free is not None
        peak = device.measure_peak(run)
        assert 3 * size <= peak
        if device.free_memory() == free:
            break  # otherwise another process allocated memory, which counts as outside of the allocator
    assert peak < 3.5 * size
    assert device.free_memory() == free
