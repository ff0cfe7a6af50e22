"""The store of frames: what it says it did."""

import numpy as np
import torch

from omni.device import COMPLETED
from omni.stage import Feed
from omni_frames.inputs import Arrival
from omni_frames.request import FrameRequest
from omni_frames.store import FrameStore
from tests.support.devices import QueuedDevice
from tests.support.frame_bench import frames

RING = 4
"""Uploads that may be under way."""


def request(codes: np.ndarray) -> FrameRequest:
    made = FrameRequest("r", set())
    made.row = 0
    known = torch.from_numpy(codes)
    made.arrivals.append(Arrival(Feed("r", frames(known), COMPLETED), known, len(codes)))
    return made


def test_a_store_whose_uploads_are_all_under_way_takes_nothing_and_says_so():
    device = QueuedDevice()
    store = FrameStore(device, device.stream("vocoder"), rows=1, capacity=16, groups=2)
    codes = np.arange(2).reshape(1, 2)
    asking = [request(codes) for _ in range(RING + 1)]
    assert [store.take([one]) for one in asking] == [(True, {})] * RING + [(False, {})]
    assert [len(one.arrivals) for one in asking] == [0] * RING + [1]
    device.synchronize()
    assert store.take([asking[-1]]) == (True, {})
    assert store.take([asking[-1]]) == (False, {}), "there is nothing left"
