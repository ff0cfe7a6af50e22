"""The diffusion transformer against transformers, given the same noise; and what making an utterance in windows changes.

Shape legend: M mel bins, N codes, T mel frames.
"""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniDiTConfig, Qwen2_5OmniToken2WavConfig

from omni.device.kernel_choice import kernels_of
from omni_diffusion.layers import RungeKutta
from omni_diffusion.model import Windows
from omni_qwen2_5_omni.token2wav import Token2Wav
from omni_qwen2_5_omni.token2wav.dit import DiT
from tests.support.tiny_qwen2_5_omni import SMALL_BIGVGAN, SMALL_DIT, Denoised, DiTPair, Rows

pytestmark = pytest.mark.thorough

TOLERANCE = 1e-5
OTHERS: list[dict[str, Any]] = [
    {"repeats": 1, "block_size": 6, "look_ahead_layers": [1], "look_backward_layers": [1, 2]},
    {"repeats": 3, "block_size": 9, "num_hidden_layers": 2, "look_ahead_layers": [], "look_backward_layers": [1]},
    {"repeats": 2, "block_size": 4, "look_ahead_layers": [0, 3], "look_backward_layers": [], "num_attention_heads": 3},
    {"guidance": 0.0, "steps": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
    {"guidance": 1.3, "remembers": True},
]


@pytest.fixture(scope="module")
def pair() -> DiTPair:
    return DiTPair.of()


def error(made: Tensor, expected: Tensor) -> float:
    """Largest deviation, as a share of the largest value."""
    assert made.shape == expected.shape
    return float((made - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("codes", [1, 4, 23])
def test_noise_becomes_the_spectrogram_that_transformers_makes(pair: DiTPair, codes: int) -> None:
    window = pair.codes(codes), pair.noise(codes)
    assert error(Rows(pair).whole(*window), pair.expected(*window)) < TOLERANCE


@pytest.mark.parametrize("shape", OTHERS, ids=str)
def test_transformers_of_other_shapes_equal_the_published_ones(shape: dict[str, Any]) -> None:
    other = DiTPair.of(**shape)
    window = other.codes(19), other.noise(19)
    assert error(Rows(other).whole(*window), other.expected(*window)) < TOLERANCE


def test_nine_steps_equal_the_published_model() -> None:
    other = DiTPair.of(steps=9)
    window = other.codes(9), other.noise(9)
    assert error(Rows(other).whole(*window), other.expected(*window)) < TOLERANCE
    config = Qwen2_5OmniToken2WavConfig(dit_config=SMALL_DIT, bigvgan_config=SMALL_BIGVGAN)
    assert Token2Wav(config).num_steps == 9


def test_kernels_make_the_same_spectrogram() -> None:
    pytest.importorskip("triton")
    layers: dict[str, Any] = {"num_hidden_layers": 2, "look_ahead_layers": [0], "look_backward_layers": [1]}
    pair = DiTPair.of(remembers=True, steps=1, **layers)
    utterances = [(pair.codes(n, seed), pair.noise(n, seed)) for seed, n in enumerate((5, 2))]
    windows = [Denoised(row, *utterance) for row, utterance in enumerate(utterances)]
    rows = Rows(pair, frames=12)
    with kernels_of(torch.device("cuda")):
        rows.begin(*windows)
        made = rows.finish(*windows)
    for frames, utterance in zip(made, utterances, strict=True):
        assert error(frames, pair.expected(*utterance)) < TOLERANCE


def test_output_depends_on_noise_codes_and_voice(pair: DiTPair) -> None:
    """The reference is no degenerate one."""
    codes, noise = pair.codes(12), pair.noise(12)
    expected = pair.expected(codes, noise)
    other_voice = pair.expected(codes, noise, voice=1)
    for other in (pair.expected(codes, pair.noise(12, 1)), pair.expected(codes.flip(0), noise), other_voice):
        assert error(other, expected) > 1e-2
    assert error(Rows(pair).whole(codes, noise, voice=1), other_voice) < TOLERANCE


@pytest.mark.parametrize("remembers", [False, True])
def test_windows_of_different_lengths_at_different_steps_share_a_batch(remembers: bool) -> None:
    pair = DiTPair.of(remembers=remembers)
    utterances = [(pair.codes(n, seed), pair.noise(n, seed)) for seed, n in enumerate((9, 3, 14))]
    windows = [Denoised(row, *utterances[row], voice=row % 2) for row in range(3)]
    rows = Rows(pair)
    rows.begin(windows[1])
    rows.step(windows[1])
    rows.begin(windows[2], windows[0])
    rows.step(windows[0], windows[1])
    made = rows.finish(*windows)
    for row, frames in enumerate(made):
        assert error(frames, pair.expected(*utterances[row], voice=row % 2)) < TOLERANCE


@pytest.mark.parametrize("remembers", [False, True])
def test_a_nan_row_does_not_reach_its_neighbours_and_is_used_again(remembers: bool) -> None:
    pair = DiTPair.of(remembers=remembers)
    utterances = [(pair.codes(8, seed), pair.noise(8, seed)) for seed in range(3)]
    broken = utterances[1][1].clone()
    broken[3, 2] = torch.nan
    windows = [Denoised(row, codes, broken if row == 1 else noise) for row, (codes, noise) in enumerate(utterances)]
    rows = Rows(pair)
    rows.begin(*windows)
    made = rows.finish(*windows)
    assert made[1].isnan().any()
    for row in (0, 2):
        assert error(made[row], pair.expected(*utterances[row])) < TOLERANCE
    again = Denoised(1, *utterances[1])
    rows.begin(again)
    assert error(rows.finish(again)[0], pair.expected(*utterances[1])) < TOLERANCE


def test_a_window_anywhere_equals_transformers_slice(pair: DiTPair) -> None:
    codes, noise = pair.codes(40), pair.noise(40)
    window = Denoised(2, codes[8:28], noise[16:56], first=8, context=8, fresh=8)
    rows = Rows(pair)
    rows.begin(window)
    assert error(rows.finish(window)[0], pair.expected(codes[8:28], noise[16:56])) < TOLERANCE


def stream(
    pair: DiTPair, codes_N: Tensor, noise_TM: Tensor, blocks: int, ahead: int, before: int = 0, row: int = 0
) -> Tensor:
    """Windows of so many blocks of their own, with `before` that were made already, and `ahead` that are made again later."""
    rows, block, repeats = Rows(pair), pair.ours.block_frames, pair.ours.repeats
    pieces, done = [], 0
    while done < len(codes_N):
        first, end = max(done - before * block, 0), min(done + (blocks + ahead) * block, len(codes_N))
        fresh = min(blocks * block, len(codes_N) - done)
        window = Denoised(
            row, codes_N[first:end], noise_TM[first * repeats : end * repeats], first, done - first, fresh
        )
        rows.begin(window)
        made = rows.finish(window)[0][(done - first) * repeats :]
        pieces.append(made[: fresh * repeats])
        done += fresh
    return torch.cat(pieces)


@pytest.mark.parametrize("blocks", [1, 5])
def test_windows_that_remember_are_exact_where_nothing_looks_ahead(blocks: int) -> None:
    other = DiTPair.of(look_ahead_layers=[], remembers=True)
    window = other.codes(26), other.noise(26)
    expected = other.expected(*window)
    assert error(stream(other, *window, blocks, ahead=0, row=1), expected) < TOLERANCE
    forgetful = DiTPair.of(look_ahead_layers=[])
    assert error(stream(forgetful, *window, blocks, ahead=0), expected) > 1e-3


def test_windows_come_closer_to_the_whole_with_each_block_of_lookahead() -> None:
    """And with as many blocks ahead as there are evaluations they are it."""
    pair = DiTPair.of(remembers=True)
    window = pair.codes(40), pair.noise(40)
    whole = pair.expected(*window)
    errors = [error(stream(pair, *window, 2, ahead), whole) for ahead in (0, 1, 2, 12)]
    assert errors[0] > 1e-2
    assert all(later < earlier / 2 for earlier, later in pairwise(errors))
    assert errors[-1] < TOLERANCE


def test_no_value_is_read_back_from_the_device() -> None:
    """Tensors on the meta device have no values: whatever asks for one raises."""
    with torch.device("meta"):
        config = Qwen2_5OmniToken2WavConfig(dit_config=SMALL_DIT, bigvgan_config=SMALL_BIGVGAN)
        model = Token2Wav(config)
        model.ready(torch.zeros(3, 2, 16))
        state = model.new_state(5, 12)
        rows_B = torch.zeros(2, dtype=torch.int64)
        codes_BNG = torch.zeros(2, 12, 1, dtype=torch.int64)
        model.begin(state, Windows(rows_B, rows_B, rows_B, rows_B, rows_B, rows_B, codes_BNG))
        latents = model.denoise(state, torch.zeros(2, 16, 8), rows_B, rows_B)
    assert latents.shape == (2, 16, 8)
    assert model.render(latents).shape == (2, 16 * 30)


def test_history_of_the_released_model_has_the_documented_size() -> None:
    with torch.device("meta"):
        dit = DiT(Qwen2_5OmniDiTConfig())
        dit.prepare(RungeKutta(9, device="meta").times_E)
    shape = dit.history_shape(1)
    assert shape == (1, 36, 2, 2, 24, 2, 16, 64)
    assert round(torch.Size(shape).numel() * 4 / 2**20) == 27
