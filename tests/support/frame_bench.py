"""A stage that reads code frames and gives samples, driven by hand-made messages."""

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray

from omni.connector import Ref
from omni.device import COMPLETED, Device, Event
from omni.payload import AudioChunk, PageSlice, Payload
from omni.stage import Done, StageWorker
from omni.testing.simulation.late import QueuedDevice
from omni.testing.stages.driver import FailingDriver
from omni_frames.request import CodeFrames
from omni_frames.worker import FrameModel

Wave: TypeAlias = NDArray[np.float32] | NDArray[np.float64]
POISON = 999
"""A code that models of tests refuse. Pages hold it in unwritten entries."""
PAGE = 4


class FrameBench(FailingDriver):
    """A stage and a talker's code pages."""

    def __init__(self, worker: StageWorker, model: FrameModel, device: Device) -> None:
        self.device = device
        self.pages = torch.full((64, PAGE, model.num_groups), POISON)
        self._sample_rate = model.sample_rate
        self._slots = np.random.default_rng(0).permutation(64 * PAGE)
        self._used = 0
        super().__init__(worker, device.stream("test"))

    def feed_pages(
        self, request_id: str, codes: NDArray[np.int64], ready: Event = COMPLETED, write: bool = True
    ) -> Ref:
        """Feeds frames out of scattered page slots."""
        return self.feed(request_id, frames(self.slice(codes, write)), ready)

    def speak(self, request_id: str, codes: NDArray[np.int64]) -> Ref:
        """A whole request."""
        self.open(request_id)
        ref = self.feed_pages(request_id, codes)
        self.end(request_id)
        return ref

    def slice(self, codes: NDArray[np.int64], write: bool = True) -> PageSlice:
        """Frames in scattered page slots of their own."""
        slots = self._slots[self._used : self._used + len(codes)]
        self._used += len(codes)
        if write:
            self.write(slots, codes)
        return PageSlice(self.pages, slots)

    def write(self, slots: NDArray[np.int64], codes: NDArray[np.int64]) -> None:
        self.pages.flatten(0, 1)[torch.from_numpy(slots)] = torch.from_numpy(codes)

    def wave(self, request_id: str) -> NDArray[np.float32]:
        """The request's samples so far."""
        return np.concatenate([np.empty(0, np.float32), *self.chunks(request_id)])

    def chunks(self, request_id: str) -> list[NDArray[np.float32]]:
        chunks = []
        for message in self.produced.get(request_id, []):
            assert isinstance(message.payload.meta, AudioChunk)
            assert message.payload.meta.sample_rate == self._sample_rate
            chunks.append(message.payload.meta.samples)
        return chunks

    def expect_wave(self, request_id: str, num_frames: int, wave: Wave, rtol: float, atol: float = 0) -> None:
        """That it ended, with these samples of so many frames."""
        np.testing.assert_allclose(self.wave(request_id), wave, rtol=rtol, atol=atol)
        assert self.ends[request_id] == Done(request_id, "stop", {"frames": num_frames, "samples": len(wave)})


def feed_at_random(
    bench: FrameBench, stage: str, codes: Mapping[str, NDArray[np.int64]], data: st.DataObject
) -> list[Ref]:
    """Feeds frames in any order and in parts of any size, ends each request, and lets host and device go on between."""
    device = bench.device
    assert isinstance(device, QueuedDevice)
    left, refs = dict(codes), []
    while left:
        name = data.draw(st.sampled_from(sorted(left)))
        count = data.draw(st.integers(1, 24))
        refs.append(bench.feed_pages(name, left[name][:count]))
        left[name] = left[name][count:]
        if not len(left[name]):
            del left[name]
            bench.end(name)
        for _ in range(data.draw(st.integers(0, 3))):
            bench.tick()
            device.run({data.draw(st.sampled_from([stage, f"{stage}-copy"]))}, operations=data.draw(st.integers(0, 6)))
    return refs


def frames(codes: PageSlice | torch.Tensor) -> Payload:
    return Payload(CodeFrames(count=len(codes.slots if isinstance(codes, PageSlice) else codes)), {"codes": codes})


def random_codes(count: int, seed: int = 0, groups: int = 2) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, 100, (count, groups))
