"""What waits for the device at start may do so under the guard; what is measured there is over when it is said."""

import pytest
import torch

from omni.device import SyncCheck
from omni.device.sync import SyncError, sync_guard
from support.queued_device import QueuedDevice


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
