"""The model computes in the precision that the options name, and nobody else notices."""

import pytest
import torch
from torch import Tensor

from omni.device.cpu import CpuDevice
from omni_diffusion.model import Windows
from tests.support.frame_bench import random_codes
from tests.support.painter import Bench, Canvas, Painter


def precision() -> tuple[bool, bool]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


class Watched(Painter):
    """Remembers in which precision each of its functions was called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, set[tuple[bool, bool]]] = {}

    def _see(self, name: str) -> None:
        self.seen.setdefault(name, set()).add(precision())

    def begin(self, state: Canvas, windows: Windows) -> None:
        self._see("begin")
        super().begin(state, windows)

    def denoise(self, state: Canvas, latents_BTM: Tensor, rows_B: Tensor, steps_B: Tensor) -> Tensor:
        self._see("denoise")
        return super().denoise(state, latents_BTM, rows_B, steps_B)

    def render(self, latents_BTM: Tensor) -> Tensor:
        self._see("render")
        return super().render(latents_BTM)


@pytest.mark.parametrize("tf32", [True, False])
def test_the_model_computes_everything_in_the_chosen_precision(tf32: bool) -> None:
    before, model = precision(), Watched()
    bench = Bench(CpuDevice(), model, tf32=tf32)
    codes = random_codes(20)
    bench.speak("a", codes)
    bench.settle(bench.device)
    bench.expect("a", codes)
    assert model.seen == {name: {(tf32, tf32)} for name in ("begin", "denoise", "render")}
    assert precision() == before
