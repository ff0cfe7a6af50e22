"""The sync guard reports operations that make the host wait for the device, on the checked thread, on the CPU as on a GPU."""

import logging
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch

from omni.device import HostRing, SyncCheck, SyncGuard, SyncPoint, host_waits, may_sync, sync_guard
from omni.device.cpu import CpuDevice
from omni.device.meta import MetaDevice
from omni.errors import ConfigError, SyncError
from omni.testing.simulation.late import QueuedDevice

MASK = torch.arange(6) > 2
BYTES = MASK.to(torch.uint8)
"""To torch the same: an index of bytes is a mask."""
REPEATS = torch.ones(6, dtype=torch.int64)
HOST = CpuDevice().host_tensor((6,), torch.float32)

Operation = Callable[[torch.Tensor], object]
pytestmark = pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
WAITS: dict[str, tuple[Operation, str]] = {
    "item": (lambda x: x[0].item(), "keep the value on the device"),
    "bool": (lambda x: bool(MASK[0]), "keep the value on the device"),
    "int": (lambda x: int(x[1]), "keep the value on the device"),
    "index by a scalar tensor": (lambda x: x[REPEATS[0]], "keep the value on the device"),
    "equal": (lambda x: torch.equal(x, x), "keep the value on the device"),
    "allclose": (lambda x: torch.allclose(x, x), "keep the value on the device"),
    "multinomial": (lambda x: torch.multinomial(x, 1), "keep the value on the device"),
    "index_fill with a tensor": (lambda x: x.index_fill(0, REPEATS[:1], x[0]), "keep the value on the device"),
    "tolist": (lambda x: x.tolist(), "keep the value on the device"),
    "numpy": (lambda x: x.numpy(), "keep the value on the device"),
    "asarray": (lambda x: np.asarray(x), "keep the value on the device"),
    "nonzero": (lambda x: x.nonzero(), "shape depends on values"),
    "where": (lambda x: torch.where(MASK), "shape depends on values"),
    "argwhere": (lambda x: torch.argwhere(MASK), "shape depends on values"),
    "mask": (lambda x: x[MASK], "shape depends on values"),
    "assignment by a mask": (lambda x: x.clone().__setitem__(MASK, x[:3]), "shape depends on values"),
    "mask of bytes": (lambda x: x[BYTES], "shape depends on values"),
    "mask of bytes among indices": (lambda x: x.view(2, 3)[:, BYTES[2:5]], "shape depends on values"),
    "assignment by a mask of bytes": (lambda x: x.clone().__setitem__(BYTES, x[:3]), "shape depends on values"),
    "index_put_ by a mask of bytes": (lambda x: x.clone().index_put_((BYTES,), x[:3]), "shape depends on values"),
    "index_put by a mask of bytes": (lambda x: x.index_put((BYTES,), x[:3]), "shape depends on values"),
    "where of bytes": (lambda x: torch.where(BYTES), "shape depends on values"),
    "masked_select": (lambda x: x.masked_select(MASK), "shape depends on values"),
    "unique": (lambda x: x.unique(), "shape depends on values"),
    "unique_consecutive": (lambda x: x.unique_consecutive(), "shape depends on values"),
    "repeat_interleave": (lambda x: x.repeat_interleave(REPEATS), "shape depends on values"),
    "bincount": (lambda x: x.long().bincount(), "shape depends on values"),
    "cpu": (lambda x: x.cpu(), "pinned memory of a HostSlot"),
    "a tensor of host data": (lambda x: torch.tensor([1, 2], device="cpu"), "pinned memory of a HostSlot"),
    "a copy to the host": (lambda x: HOST.copy_(x), "pinned memory of a HostSlot"),
    "a copy from the host": (lambda x: x.clone().copy_(HOST), "pinned memory of a HostSlot"),
}
DOES_NOT_WAIT: dict[str, Operation] = {
    "arithmetic": lambda x: (x + 1).softmax(0).argmax(),
    "a gather": lambda x: x.index_select(0, REPEATS),
    "an index": lambda x: x[REPEATS],
    "an index among bytes": lambda x: BYTES[REPEATS],
    "a gather of bytes": lambda x: BYTES.index_select(0, REPEATS),
    "a choice": lambda x: torch.where(MASK, x, 0),
    "a fill by mask": lambda x: x.masked_fill(MASK, 1),
    "repeat_interleave of a known size": lambda x: x.repeat_interleave(REPEATS, output_size=6),
    "repeat_interleave by a number": lambda x: x.repeat_interleave(2),
    "a linear layer": lambda x: torch.nn.functional.linear(x, torch.ones(2, 6)),
    "a copy to the host that is not waited for": lambda x: HOST.copy_(x, non_blocking=True),
    "a copy from the host that is not waited for": lambda x: x.clone().copy_(HOST, non_blocking=True),
    "a copy on the device": lambda x: x.clone().copy_(x),
    "to": lambda x: x.to(x.device, torch.float64),
    "a view": lambda x: x.view(2, 3)[1:, None].expand(1, 5, 3),
}
ITEM = WAITS["item"][0]
INFERENCE = pytest.mark.parametrize("inference", [False, True])


def launch(device: CpuDevice, ask: Operation) -> None:
    x = torch.arange(6.0)

    def busy() -> None:
        ask(x)

    device.launch(device.stream("s"), busy)


@INFERENCE
@pytest.mark.parametrize("how", WAITS)
def test_a_host_wait_in_a_phase_raises(how: str, inference: bool):
    device, (ask, remedy) = CpuDevice(), WAITS[how]
    with torch.inference_mode(inference), SyncGuard(device, SyncCheck.ERROR):
        with pytest.raises(SyncError, match=rf"in phase busy makes the host wait for the device; .*{remedy}") as caught:
            launch(device, ask)
        ask(torch.arange(6.0))  # outside of phases no tensor is on the device
    assert caught.value.phase == "busy"


@INFERENCE
@pytest.mark.parametrize("how", WAITS)
def test_a_wait_is_logged_once_for_each_code_line(how: str, inference: bool, caplog: pytest.LogCaptureFixture):
    device, (ask, remedy) = CpuDevice(), WAITS[how]
    with torch.inference_mode(inference), SyncGuard(device, SyncCheck.WARN) as guard:
        for _ in range(3):
            launch(device, ask)
    first = caplog.records[0].getMessage()
    assert remedy in first
    assert f'{__file__}", line' in first
    assert len(caplog.records) == len(guard.seen) <= 2
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


@INFERENCE
@pytest.mark.parametrize("how", DOES_NOT_WAIT)
def test_work_without_a_host_wait_passes(how: str, inference: bool):
    device = CpuDevice()
    with torch.inference_mode(inference), SyncGuard(device, SyncCheck.ERROR) as guard:
        launch(device, DOES_NOT_WAIT[how])
    assert not guard.seen


@INFERENCE
def test_results_are_those_without_the_guard(inference: bool):
    device, results = CpuDevice(), []
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*size, generator=generator) for size in ((5, 33), (17, 33), (17,)))

    def compute() -> None:
        y = torch.nn.functional.linear(x, weight, bias).unflatten(1, (1, 17)).expand(5, 3, 17)
        results.append(torch.nn.functional.scaled_dot_product_attention(y, y, y).flatten(1).repeat_interleave(2, 0))

    with torch.inference_mode(inference):
        launch(device, lambda x: compute())
        with SyncGuard(device, SyncCheck.ERROR):
            launch(device, lambda x: compute())
    assert torch.equal(*results)


def test_the_guard_finds_waits_outside_of_phases():
    device = CpuDevice()
    with SyncGuard(device, SyncCheck.ERROR):
        with pytest.raises(SyncError, match=r"^Device.synchronize outside of phases makes the host wait"):
            device.synchronize()
        with pytest.raises(SyncError, match="a fabric's flush"):
            host_waits("a fabric's flush")
    device.synchronize()
    host_waits("nobody is checked")


def test_listed_sync_points_may_wait():
    device = CpuDevice()
    with SyncGuard(device, SyncCheck.ERROR) as guard:
        with may_sync(SyncPoint.MEASURE):
            with may_sync(SyncPoint.MEASURE):
                launch(device, ITEM)
            launch(device, torch.Tensor.tolist)
            device.synchronize()
        with pytest.raises(SyncError):
            launch(device, ITEM)
    assert len(guard.seen) == 1


def test_may_sync_ends_with_its_purpose():
    device = CpuDevice()
    with SyncGuard(device, SyncCheck.ERROR):
        with pytest.raises(ZeroDivisionError), may_sync(SyncPoint.MEASURE):
            launch(device, lambda x: 1 / 0)
        with pytest.raises(SyncError):
            launch(device, ITEM)


def test_only_the_thread_that_entered_is_checked():
    device, errors = CpuDevice(), []

    def elsewhere() -> None:
        try:
            launch(CpuDevice(), ITEM)
            device.synchronize()
        except SyncError as error:
            errors.append(error)

    def guarded() -> None:
        SyncGuard(device, SyncCheck.ERROR).__enter__()
        elsewhere()

    with SyncGuard(device, SyncCheck.ERROR), may_sync(SyncPoint.MEASURE):
        checked = threading.Thread(target=guarded)
        free = threading.Thread(target=elsewhere)
        for thread in (free, checked):
            thread.start()
            thread.join()
            if thread is free:
                assert not errors
    # Neither a guard nor a `may_sync` reaches another thread.
    assert [error.operation for error in errors] == ["Device.synchronize"]


def test_the_guard_ends_with_its_block():
    device, read = CpuDevice(), []
    with SyncGuard(device, SyncCheck.ERROR) as guard, pytest.raises(SyncError):
        launch(device, ITEM)
    seen = set(guard.seen)
    launch(device, lambda x: read.append(x[3].item()))
    device.synchronize()
    assert read == [3.0]
    assert guard.seen == seen


def test_a_step_through_rings_does_not_wait():
    device = CpuDevice()
    ring, done = HostRing.allocate(device, (4,), torch.int64, 2), []

    def copy(host: torch.Tensor, made: torch.Tensor) -> None:
        host.copy_(made, non_blocking=True)

    with SyncGuard(device, SyncCheck.ERROR) as guard:
        stream, made = device.stream("s"), torch.arange(4)
        slot = ring.advance()
        slot.take()
        device.launch(stream, copy, slot.tensor, made)
        slot.guard(device.record(stream))
        done.append(slot.read().tolist())
    assert done == [[0, 1, 2, 3]]
    assert not guard.seen


@pytest.mark.parametrize(
    ("value", "check"), [("", SyncCheck.OFF), ("warn", SyncCheck.WARN), ("error", SyncCheck.ERROR)]
)
def test_the_environment_variable_selects_the_check(value: str, check: SyncCheck):
    assert SyncCheck.from_environment({"OMNI_SYNC_CHECK": value}) is check


def test_without_the_variable_nothing_is_checked():
    device = CpuDevice()
    assert SyncCheck.from_environment({}) is SyncCheck.OFF
    with sync_guard(device, SyncCheck.OFF):
        launch(device, ITEM)
        device.synchronize()


@pytest.mark.parametrize("value", ["on", "1", "Error", " warn"])
def test_another_value_is_refused(value: str):
    with pytest.raises(ConfigError, match=r"OMNI_SYNC_CHECK: .* is not a check; use"):
        SyncCheck.from_environment({"OMNI_SYNC_CHECK": value})


def test_a_peak_may_be_waited_for_and_is_that_of_work_that_is_over():
    device = QueuedDevice()
    stream, kept = device.stream("main"), []

    def take() -> None:
        kept.append(torch.zeros(1 << 20, dtype=torch.uint8))

    with sync_guard(device, SyncCheck.ERROR):
        assert device.measure_peak(lambda: device.launch(stream, take)) >= 1 << 20
        with pytest.raises(SyncError):
            device.synchronize()
    assert device.pending == 0


def test_nothing_takes_nothing():
    assert QueuedDevice().measure_peak(lambda: None) == 0


PAGEABLE = torch.zeros(6)
COPIES = {
    "to the device": lambda x: x.copy_(PAGEABLE),
    "to a new tensor of the device": lambda x: PAGEABLE.to(x.device),
    "to the host": lambda x: PAGEABLE.copy_(x),
    "unpinned, without waiting": lambda x: x.copy_(PAGEABLE, non_blocking=True),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_between_host_and_device_is_reported_anywhere(name: str):
    """On the CPU both are one. A meta tensor is on no CPU, and the guard looks before the copy is made."""
    with sync_guard(MetaDevice(), SyncCheck.ERROR):
        x = torch.zeros(6, device="meta")
        x.clone().copy_(x)
        with pytest.raises(SyncError, match="pinned memory of a HostSlot"):
            COPIES[name](x)
