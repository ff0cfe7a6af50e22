"""A small stage that reads code frames and gives samples: what `FrameWorker` leaves to a kind, and no more.

Shape legend: B rows of a batch, N frames of each, C frames of a row's ring, G code groups.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from omni.device import Device, Uploader
from omni.stage import Open, together
from omni_frames.request import FrameRequest
from omni_frames.store import SampleBatch
from omni_frames.worker import FrameWorker
from tests.support.frame_bench import POISON, FrameBench

CHUNK = 2
CAPACITY = 8


class AdderModel:
    num_groups = 2
    sample_rate = 8000


class Adder(FrameWorker[FrameRequest]):
    """A frame's sample is the sum of its codes. Up to `CHUNK` frames are added up at once, one batch of a request at a time."""

    def __init__(self, device: Device, rows: int) -> None:
        super().__init__(
            "adder", device, AdderModel(), rows=rows, capacity=CAPACITY, most_samples=rows * CHUNK, priority=0
        )
        self._upload = Uploader(device, self.stream, rows * CHUNK, 4)

    def open(self, message: Open) -> FrameRequest:
        return FrameRequest(message.request_id, set(message.inputs), message.order)

    def finished(self, request: FrameRequest) -> bool:
        return request.ended and not request.in_flight and not request.buffered

    def run(self) -> bool:
        ready = [r for r in self.rows.owners if r.buffered and not r.paused and not r.in_flight]
        if not ready or not (self.samples.ready and self._upload.ready):
            return False
        batch = together(ready)
        count = min(CHUNK, *(request.buffered for request in batch))
        if self.run_batch(batch, "adding", partial(self._add, batch, count), again=True):
            for request in batch:
                request.forget(count, CAPACITY)
                request.done += count
            self.totals["steps"] += 1
            self.totals["frames"] += count * len(batch)
        return True

    def _add(self, batch: Sequence[FrameRequest], count: int) -> Callable[[], SampleBatch[FrameRequest]]:
        (indices_BN,) = self._upload.send([np.stack([self.store.indices(request, 0, count) for request in batch])])
        wav_BN = self.samples.buffer(len(batch), count)
        self.device.launch(self.stream, add_codes, self.store.ring_RCG, indices_BN, wav_BN)
        return partial(self.samples.download, batch, count)


def add_codes(ring_RCG: Tensor, indices_BN: Tensor, wav_BN: Tensor) -> None:
    codes_BNG = ring_RCG.flatten(0, 1).index_select(0, indices_BN.flatten()).unflatten(0, indices_BN.shape)
    if bool((codes_BNG == POISON).any()):
        raise ValueError("poisoned")
    wav_BN.copy_(codes_BNG.sum(-1))


class Bench(FrameBench):
    def __init__(self, device: Device, rows: int = 4) -> None:
        self.adder = Adder(device, rows)
        super().__init__(self.adder, AdderModel(), device)

    def expect_sums(self, request_id: str, codes: NDArray[np.int64]) -> None:
        self.expect_wave(request_id, len(codes), codes.sum(-1).astype(np.float32), rtol=0)
