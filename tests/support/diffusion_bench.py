"""A diffusion stage driven by hand-made messages."""

import numpy as np
import torch
from numpy.typing import NDArray

from omni.chunks import AudioChunk
from omni.connector import Ref
from omni.device import COMPLETED, Device, Event
from omni.payload import PageSlice, Payload
from omni.stage import Done
from omni_diffusion.inputs import Voice
from omni_diffusion.noise import Noise
from omni_diffusion.options import DiffusionOptions
from omni_diffusion.windows import Window
from omni_diffusion.worker import DiffusionWorker
from support.painter import BLOCK, POISON, REPEATS, WIDTH, Painter, heard, painted, spans
from support.stage_driver import StageDriver
from support.vocoder_bench import frames

PAGE = 4


class Bench(StageDriver):
    """A diffusion stage and a talker's code pages."""

    def __init__(self, device: Device, model: Painter | None = None, **options: int) -> None:
        self.device = device
        self.model = model or Painter()
        self.options = DiffusionOptions(**options)  # type: ignore[arg-type]
        self.diffusion = DiffusionWorker("diffusion", device, self.model, self.options)
        self.pages = torch.full((64, PAGE, self.model.num_groups), POISON)
        self._slots = np.random.default_rng(0).permutation(64 * PAGE)
        self._used = 0
        super().__init__(self.diffusion, device.stream("test"))

    def speak(
        self, request_id: str, codes: NDArray[np.int64], voice: int = 1, noise: NDArray[np.float32] | None = None
    ) -> Ref:
        """A whole request; its noise is its own unless told."""
        self.open(request_id)
        self.give_voice(request_id, voice, noise if noise is not None else noise_of(request_id, len(codes)))
        ref = self.feed_pages(request_id, codes)
        self.end(request_id)
        return ref

    def give_voice(self, request_id: str, voice: int, noise: NDArray[np.float32] | None = None) -> None:
        tensors = {} if noise is None else {"noise": torch.from_numpy(noise)}
        self.feed_host(request_id, Payload(Voice(index=voice), tensors))

    def feed_pages(self, request_id: str, codes: NDArray[np.int64], ready: Event = COMPLETED) -> Ref:
        """Feeds frames out of scattered page slots."""
        slots = self._slots[self._used : self._used + len(codes)]
        self._used += len(codes)
        self.pages.view(-1, self.model.num_groups)[torch.from_numpy(slots)] = torch.from_numpy(codes)
        return self.feed(request_id, frames(PageSlice(self.pages, slots)), ready)

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

    def expect(
        self, request_id: str, codes: NDArray[np.int64], voice: int = 1, noise: NDArray[np.float32] | None = None
    ) -> None:
        """The samples of its windows, each by the book."""
        noise = noise if noise is not None else noise_of(request_id, len(codes))
        whole = heard(painted(codes, voice, noise, spans(len(codes), self.options)), self.model.context)
        np.testing.assert_allclose(self.wave(request_id), whole, rtol=1e-4, atol=1e-5)
        assert self.ends[request_id] == Done(request_id, "stop", {"frames": len(codes), "samples": len(whole)})


def noise_of(request_id: str, count: int) -> NDArray[np.float32]:
    """`[T, M]` for so many code frames."""
    seed = sum(request_id.encode())
    return np.random.default_rng(seed).standard_normal((count * REPEATS, WIDTH), np.float32)


def drawn(seed: int, count: int, sample_index: int = 0) -> NDArray[np.float32]:
    """What a stage draws of a seed, for so many code frames."""
    return Noise(seed, sample_index, BLOCK, REPEATS, WIDTH).of(Window(0, 0, count, count, last=True))
