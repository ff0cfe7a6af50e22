"""A vocoder stage driven by hand-made messages."""

import numpy as np
from numpy.typing import NDArray

from omni.device import Device
from omni_vocoder.options import VocoderOptions
from omni_vocoder.worker import VocoderWorker
from support.frame_bench import FrameBench
from support.wavemaker import WaveMaker, whole_wave


class Bench(FrameBench):
    """A vocoder and a talker's code pages."""

    def __init__(self, device: Device, model: WaveMaker | None = None, **options: int) -> None:
        self.model = model or WaveMaker()
        self.vocoder = VocoderWorker("vocoder", device, self.model, VocoderOptions(**options))
        super().__init__(self.vocoder, self.model, device)

    def expect_whole(self, request_id: str, codes: NDArray[np.int64]) -> None:
        self.expect_wave(request_id, len(codes), whole_wave(self.model, codes.tolist()), rtol=1e-6)
