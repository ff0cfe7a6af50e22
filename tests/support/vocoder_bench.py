"""A vocoder stage driven by hand-made messages."""

import numpy as np
import torch
from numpy.typing import NDArray

from omni.chunks import AudioChunk
from omni.connector import Ref
from omni.device import COMPLETED, Device, Event
from omni.payload import PageSlice, Payload
from omni.stage import Done
from omni_vocoder.inputs import CodeFrames
from omni_vocoder.options import VocoderOptions
from omni_vocoder.worker import VocoderWorker
from support.stage_driver import StageDriver
from support.wavemaker import POISON, WaveMaker, whole_wave

BLOCK = 4


class Bench(StageDriver):
    """A vocoder and a talker's code pages."""

    def __init__(self, device: Device, model: WaveMaker | None = None, **options: int) -> None:
        self.device = device
        self.model = model or WaveMaker()
        self.vocoder = VocoderWorker("vocoder", device, self.model, VocoderOptions(**options))
        self.pages = torch.full((64, BLOCK, self.model.num_groups), POISON)
        self._slots = np.random.default_rng(0).permutation(64 * BLOCK)
        self._used = 0
        super().__init__(self.vocoder, device.stream("test"))

    def feed_pages(
        self, request_id: str, codes: NDArray[np.int64], ready: Event = COMPLETED, write: bool = True
    ) -> Ref:
        """Feeds frames out of scattered page slots."""
        return self.feed(request_id, frames(self.slice(codes, write)), ready)

    def slice(self, codes: NDArray[np.int64], write: bool = True) -> PageSlice:
        """Frames in scattered page slots of their own."""
        slots = self._slots[self._used : self._used + len(codes)]
        self._used += len(codes)
        if write:
            self.write(slots, codes)
        return PageSlice(self.pages, slots)

    def write(self, slots: NDArray[np.int64], codes: NDArray[np.int64]) -> None:
        self.pages.view(-1, self.model.num_groups)[torch.from_numpy(slots)] = torch.from_numpy(codes)

    def wave(self, request_id: str) -> NDArray[np.float32]:
        """The request's samples so far."""
        return np.concatenate([np.empty(0, np.float32), *self.chunks(request_id)])

    def chunks(self, request_id: str) -> list[NDArray[np.float32]]:
        chunks = []
        for message in self.produced.get(request_id, []):
            assert isinstance(message.payload.meta, AudioChunk)
            assert message.payload.meta.sample_rate == self.model.sample_rate
            chunks.append(message.payload.meta.samples)
        return chunks

    def expect_whole(self, request_id: str, codes: NDArray[np.int64]) -> None:
        whole = whole_wave(self.model, codes.tolist())
        np.testing.assert_allclose(self.wave(request_id), whole, rtol=1e-6)
        assert self.ends[request_id] == Done(request_id, "stop", {"frames": len(codes), "samples": len(whole)})


def frames(codes: PageSlice | torch.Tensor) -> Payload:
    return Payload(CodeFrames(count=len(codes.slots if isinstance(codes, PageSlice) else codes)), {"codes": codes})


def random_codes(count: int, seed: int = 0, groups: int = 2) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, 100, (count, groups))
