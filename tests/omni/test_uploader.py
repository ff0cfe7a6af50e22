"""The packed upload, on a device that is late."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omni.device import Uploader
from tests.support.devices import QueuedDevice


@given(st.lists(st.lists(st.integers(-(2**62), 2**62), max_size=6), min_size=1, max_size=5))
def test_what_is_packed_is_what_the_device_sees(arrays: list[list[int]]):
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
