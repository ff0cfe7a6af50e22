"""Token2wav on a GPU in float32: what transformers makes on the CPU, eager and captured, and nothing is asked of the device."""

from typing import Any

import pytest
import torch

from omni_diffusion.model import Windows
from tests.support.devices import no_synchronization
from tests.support.tiny_qwen2_5_omni import Denoised, DiTPair, Rows, bigvgan_pair, random_mel

pytestmark = pytest.mark.gpu
TOLERANCE = 1e-4


def error(made: torch.Tensor, expected: torch.Tensor) -> float:
    assert made.shape == expected.shape
    return float((made.cpu() - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("remembers", [False, True])
@pytest.mark.parametrize("shape", [{}, {"look_ahead_layers": [0, 3], "block_size": 12, "head_dim": 64}], ids=str)
def test_spectrograms_are_those_of_transformers(shape: dict[str, Any], remembers: bool) -> None:
    pair = DiTPair.of(device="cuda", remembers=remembers, **shape)
    utterances = [(pair.codes(n, seed), pair.noise(n, seed)) for seed, n in enumerate((9, 30, 14))]
    windows = [Denoised(row, *utterances[row], voice=row % 2) for row in range(3)]
    rows = Rows(pair)
    rows.begin(*windows)
    for row, made in enumerate(rows.finish(*windows)):
        assert error(made, pair.expected(*utterances[row], voice=row % 2)) < TOLERANCE


@pytest.mark.parametrize("remembers", [False, True])
@torch.inference_mode()
def test_a_captured_step_is_the_eager_one(remembers: bool) -> None:
    pair = DiTPair.of(device="cuda", remembers=remembers)
    model, state = pair.ours, pair.ours.new_state(4, 24)
    rows_B = torch.tensor([2, 0, 3], device="cuda")
    steps_B = torch.tensor([0, 2, 1], device="cuda")
    first_B, zeros_B = torch.tensor([8, 0, 0], device="cuda"), torch.zeros_like(rows_B)
    frames_B = torch.tensor([24, 7, 16], device="cuda")
    codes_BNG = torch.randint(20, (3, 24, 1), device="cuda")
    latents_BTM = torch.randn(3, 48, 8, device="cuda")
    windows = Windows(rows_B, first_B, zeros_B, frames_B.clamp(max=8), frames_B, zeros_B, codes_BNG)
    model.begin(state, windows)
    if state.history_RELX is not None:
        state.history_RELX.normal_()
        before = state.history_RELX.clone()
    model.denoise(state, latents_BTM, rows_B, steps_B)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made_BTM = model.denoise(state, latents_BTM, rows_B, steps_B)
    for _ in range(2):
        if state.history_RELX is not None:
            state.history_RELX.copy_(before)
        with no_synchronization():
            model.begin(state, windows)
            graph.replay()
        replayed_BTM = made_BTM.clone()
        if state.history_RELX is not None:
            state.history_RELX.copy_(before)
        expected_BTM = model.denoise(state, latents_BTM, rows_B, steps_B)
        assert (replayed_BTM - expected_BTM).abs().max() < 1e-5
        latents_BTM.copy_(expected_BTM)


@torch.inference_mode()
def test_waveforms_are_those_of_transformers() -> None:
    ours, reference = bigvgan_pair()
    net = ours.to("cuda")
    mels = torch.cat([random_mel(70, seed) for seed in range(3)])
    given = mels.cuda()
    net(given)
    torch.cuda.synchronize()
    with no_synchronization():
        waves = net(given)
    for mel, wave in zip(mels, waves, strict=True):
        assert error(wave, reference(mel[None])) < TOLERANCE
