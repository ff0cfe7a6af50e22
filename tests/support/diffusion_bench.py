"""A diffusion stage driven by hand-made messages."""

import numpy as np
import torch
from numpy.typing import NDArray

from omni.connector import Ref
from omni.device import Device
from omni.payload import Payload
from omni_diffusion.inputs import Voice
from omni_diffusion.noise import Noise
from omni_diffusion.options import DiffusionOptions
from omni_diffusion.windows import Window
from omni_diffusion.worker import DiffusionWorker
from support.frame_bench import FrameBench
from support.painter import BLOCK, REPEATS, WIDTH, Painter, heard, painted, spans


class Bench(FrameBench):
    """A diffusion stage and a talker's code pages."""

    def __init__(self, device: Device, model: Painter | None = None, **options: int) -> None:
        self.model = model or Painter()
        self.options = DiffusionOptions(**options)  # type: ignore[arg-type]
        self.diffusion = DiffusionWorker("diffusion", device, self.model, self.options)
        super().__init__(self.diffusion, self.model, device)

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

    def expect(
        self, request_id: str, codes: NDArray[np.int64], voice: int = 1, noise: NDArray[np.float32] | None = None
    ) -> None:
        """The samples of its windows, each by the book."""
        noise = noise if noise is not None else noise_of(request_id, len(codes))
        whole = heard(painted(codes, voice, noise, spans(len(codes), self.options)), self.model.context)
        self.expect_wave(request_id, len(codes), whole, rtol=1e-4, atol=1e-5)


def noise_of(request_id: str, count: int) -> NDArray[np.float32]:
    """`[T, M]` for so many code frames."""
    seed = sum(request_id.encode())
    return np.random.default_rng(seed).standard_normal((count * REPEATS, WIDTH), np.float32)


def drawn(seed: int, count: int, sample_index: int = 0) -> NDArray[np.float32]:
    """What a stage draws of a seed, for so many code frames."""
    return Noise(seed, sample_index, BLOCK, REPEATS, WIDTH).of(Window(0, 0, count, count, last=True))
