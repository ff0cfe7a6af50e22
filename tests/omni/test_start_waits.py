"""What waits for the device at start may do so under the guard; what is measured there is over when it is said. Copies between the
host and a device that is not the CPU."""

import pytest
import torch

from omni.device import SyncCheck
from omni.device.meta import MetaDevice
from omni.device.sync import sync_guard
from omni.errors import SyncError
from tests.support.devices import QueuedDevice


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


HOST = torch.zeros(6)
COPIES = {
    "to the device": lambda x: x.copy_(HOST),
    "to a new tensor of the device": lambda x: HOST.to(x.device),
    "to the host": lambda x: HOST.copy_(x),
    "unpinned, without waiting": lambda x: x.copy_(HOST, non_blocking=True),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_between_host_and_device_is_told_wherever_it_is_asked_for(name: str):
    """On the CPU both are one. A meta tensor is on no CPU, and the guard looks before the copy is made."""
    with sync_guard(MetaDevice(), SyncCheck.ERROR):
        x = torch.zeros(6, device="meta")
        x.clone().copy_(x)
        with pytest.raises(SyncError, match="pinned memory of a HostSlot"):
            COPIES[name](x)
