"""A stream by itself, the reference of benchmarks of diffusion stages."""

import importlib
from types import ModuleType

import numpy as np
import pytest
import torch

from omni_diffusion.options import DiffusionOptions
from omni_diffusion.windows import WindowSizes
from tests.benchmarks.benchmark_script import BENCHMARKS
from tests.support.frame_bench import random_codes
from tests.support.painter import Painter, Span, drawn, painted, samples_of, spans

OPTIONS = DiffusionOptions(first_chunk_blocks=2, chunk_blocks=1, blocks_before=1, blocks_after=2)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("bench.alone")


@pytest.mark.parametrize("count", [1, 3, 7, 16])
def test_a_stream_alone_equals_the_formula(alone: ModuleType, count: int) -> None:
    model, codes, noise = Painter(), random_codes(count), drawn(4, count)
    tensors = torch.from_numpy(codes), 3, torch.from_numpy(noise)
    for windows, sizes in (
        ([Span(0, 0, count, count)], None),
        (spans(count, OPTIONS), WindowSizes.of(OPTIONS, model)),
    ):
        latents_TM = alone.denoise_alone(model, *tensors, sizes)
        wanted = painted(codes, 3, noise, windows)
        np.testing.assert_allclose(latents_TM, wanted, rtol=1e-5, atol=1e-5)
        wave = samples_of(wanted, model.context)
        np.testing.assert_allclose(alone.render_alone(model, latents_TM), wave, rtol=1e-4, atol=1e-5)
