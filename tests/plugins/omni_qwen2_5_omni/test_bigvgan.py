"""BigVGAN against transformers, whole and in pieces. Shape legend: M mel bins, T mel frames, S samples."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniBigVGANConfig

from omni.errors import CheckpointError
from omni_qwen2_5_omni.token2wav.bigvgan import BigVGAN
from tests.support.tiny_qwen2_5_omni import bigvgan_pair, random_mel

TOLERANCE = 1e-5
"""Of the peak: a tenth of what is asked for."""
OTHERS: list[dict[str, Any]] = [
    {"upsample_rates": [2, 2], "upsample_kernel_sizes": [4, 4], "upsample_initial_channel": 12},
    {"resblock_kernel_sizes": [3, 5], "resblock_dilation_sizes": [[1, 2, 3], [2, 1, 5]]},
    {"upsample_rates": [3], "upsample_kernel_sizes": [3], "upsample_initial_channel": 8},
]

Pair = tuple[BigVGAN, Any]


@pytest.fixture(scope="module")
def pair() -> Pair:
    return bigvgan_pair()


@torch.no_grad()
def whole(pair: Pair, mel: Tensor) -> Tensor:
    """transformers' waveform `[S]`; neither silent nor clipped."""
    wave: Tensor = pair[1](mel).reshape(-1)
    assert 0.05 < wave.abs().max() < 0.95
    return wave


@torch.no_grad()
def error(pair: Pair, mel: Tensor, expected: Tensor) -> float:
    wave = pair[0](mel)[0]
    assert wave.shape == expected.shape
    return float((wave - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("frames", [1, 2, 7, 60])
def test_spectrograms_sound_as_transformers_voices_them(pair: Pair, frames: int) -> None:
    mel = random_mel(frames)
    assert error(pair, mel, whole(pair, mel)) < TOLERANCE


@pytest.mark.parametrize("shape", OTHERS, ids=str)
def test_other_shapes_equal_the_published_ones(shape: dict[str, Any]) -> None:
    other = bigvgan_pair(**shape)
    mel = random_mel(40, seed=5)
    assert error(other, mel, whole(other, mel)) < TOLERANCE


def test_levels_are_limited_at_both_ends(pair: Pair) -> None:
    """Below the floor and above the ceiling of the scale of levels, and between the two."""
    for shift in (-20.0, 0.0, 8.0):
        mel = random_mel(12) + shift
        assert error(pair, mel, pair[1](mel).detach().reshape(-1)) < TOLERANCE


def in_pieces(pair: Pair, mel: Tensor, size: int, context: int) -> Tensor:
    """Pieces of `size` frames, each made with `context` frames on both sides where there are any."""
    pieces, frames, rate = [], mel.shape[2], pair[0].samples_per_frame
    for start in range(0, frames, size):
        end, first = min(start + size, frames), max(start - context, 0)
        with torch.no_grad():
            wave = pair[0](mel[:, :, first : end + context])[0]
        pieces.append(wave[(start - first) * rate : (end - first) * rate])
    return torch.cat(pieces)


def test_pieces_with_enough_context_are_the_whole(pair: Pair) -> None:
    assert pair[0].context == 32
    mel = random_mel(130)
    expected = whole(pair, mel)
    for size in (11, 48):
        assert (in_pieces(pair, mel, size, 32) - expected).abs().max() < TOLERANCE * expected.abs().max()
    assert (in_pieces(pair, mel, 48, 6) - expected).abs().max() > 1e-3 * expected.abs().max()


@pytest.mark.parametrize("shape", [{}, *OTHERS], ids=str)
def test_context_is_the_reach_of_transformers_network(shape: dict[str, Any]) -> None:
    """A frame that is no number spoils all that depends on it, however little."""
    net, reference = bigvgan_pair(**shape)
    middle = net.context + 3
    mel = random_mel(2 * middle + 1)
    mel[:, :, middle] = torch.nan
    with torch.no_grad():
        spoilt = reference(mel).isnan().nonzero().flatten() // net.samples_per_frame
    assert max(middle - int(spoilt.min()), int(spoilt.max()) - middle) == net.context


@pytest.mark.parametrize(
    ("shape", "field"),
    [
        ({"upsample_rates": [2], "upsample_kernel_sizes": [5]}, "upsample_kernel_sizes"),
        ({"upsample_rates": [4], "upsample_kernel_sizes": [2]}, "upsample_kernel_sizes"),
        ({"resblock_kernel_sizes": [3, 4, 5]}, "resblock_kernel_sizes"),
    ],
)
def test_impossible_kernels_are_refused(shape: dict[str, Any], field: str) -> None:
    with pytest.raises(CheckpointError, match=rf"config\.json: token2wav_config\.bigvgan_config: {field} has"):
        BigVGAN(Qwen2_5OmniBigVGANConfig(**shape))


def test_the_released_shape_has_its_rate_and_context() -> None:
    with torch.device("meta"):
        net = BigVGAN(Qwen2_5OmniBigVGANConfig())
    assert (net.samples_per_frame, net.context) == (240, 34)
    assert net(torch.zeros(2, 80, 5, device="meta")).shape == (2, 1200)
