"""A tiny streaming vocoder whose whole decode is one formula."""

from collections.abc import Sequence

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.device import Device
from omni.stage import Listeners
from omni_vocoder.model import VocoderModel
from omni_vocoder.options import VocoderOptions
from omni_vocoder.worker import VocoderWorker
from tests.support.frame_bench import POISON, FrameBench

DECAY = 0.5


class WaveState:
    """Per row: the frame filter's memory, and the last samples, whose successors are not known yet."""

    def __init__(self, rows: int, lookahead: int, device: torch.device) -> None:
        self.memory = torch.full((rows, 1), float("nan"), dtype=torch.float64, device=device)
        self.tail = torch.full((rows, lookahead), float("nan"), dtype=torch.float64, device=device)


class WaveMaker(VocoderModel[WaveState]):
    """Every frame adds its weighted codes to a decaying memory and gives `spread` samples of it; sample t then takes in
    sample t + lookahead, so the first chunk is that much shorter. `whole_wave` is the same by the book."""

    poisoned: type[BaseException] = ValueError
    """The error of a `POISON`."""

    def __init__(self, num_groups: int = 2, spread: int = 3, lookahead: int = 2, device: str = "cpu") -> None:
        super().__init__()
        self.num_groups, self.sample_rate = num_groups, 24000
        self._device = torch.device(device)
        self.spread = spread
        self.lookahead = lookahead
        self.batches: list[tuple[int, int, bool]] = []

    @property
    def min_first_frames(self) -> int:
        return max(-(-self.lookahead // self.spread), 1)

    def new_state(self, num_rows: int) -> WaveState:
        return WaveState(num_rows, self.lookahead, self._device)

    def reset(self, state: WaveState, rows_B: Tensor) -> None:
        state.memory[rows_B] = 0
        state.tail[rows_B] = float("nan")

    def samples(self, frames: int, first: bool) -> int:
        return frames * self.spread - (self.lookahead if first else 0)

    def decode(self, codes_BNG: Tensor, state: WaveState, rows_B: Tensor, first: bool) -> Tensor:
        rows, frames, _ = codes_BNG.shape
        self.batches.append((rows, frames, first))
        if bool((codes_BNG == POISON).any()):
            raise self.poisoned("poisoned")
        drive_BN = (codes_BNG * torch.arange(1, self.num_groups + 1, device=self._device)).sum(-1).double() / 1000
        memory_B1, values = state.memory[rows_B], []
        for n in range(frames):
            memory_B1 = memory_B1 * DECAY + drive_BN[:, n : n + 1]
            values.append(memory_B1 * torch.arange(1, self.spread + 1, device=self._device))
        new_BS = torch.cat(values, 1)
        state.memory[rows_B] = memory_B1
        known_BS = new_BS if first else torch.cat([state.tail[rows_B], new_BS], 1)
        state.tail[rows_B] = known_BS[:, known_BS.shape[1] - self.lookahead :]
        return known_BS[:, : known_BS.shape[1] - self.lookahead] + known_BS[:, self.lookahead :]


def whole_wave(model: WaveMaker, codes: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """The samples of all frames at once, by explicit sums."""
    drive = [sum((g + 1) * code for g, code in enumerate(frame)) / 1000 for frame in codes]
    x = [
        sum(DECAY ** (n - j) * drive[j] for j in range(n + 1)) * (s + 1)
        for n in range(len(codes))
        for s in range(model.spread)
    ]
    return np.array([x[t] + x[t + model.lookahead] for t in range(len(x) - model.lookahead)], np.float32)


# A vocoder stage driven by hand-made messages.


class Bench(FrameBench):
    """A vocoder and a talker's code pages."""

    def __init__(
        self, device: Device, model: WaveMaker | None = None, listeners: Listeners | None = None, /, **options: int
    ) -> None:
        self.model = model or WaveMaker()
        self.vocoder = VocoderWorker(
            "vocoder",
            device,
            self.model,
            msgspec.structs.replace(VocoderOptions(), **options),
            listeners=listeners,
        )
        super().__init__(self.vocoder, self.model, device)

    def expect_whole(self, request_id: str, codes: NDArray[np.int64]) -> None:
        self.expect_wave(request_id, len(codes), whole_wave(self.model, codes.tolist()), rtol=1e-6)
