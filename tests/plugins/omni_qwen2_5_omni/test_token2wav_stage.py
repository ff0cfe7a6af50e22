"""The diffusion stage on the family's model: what is streamed, against transformers on the same windows and noise.

Shape legend: N codes, T mel frames, M mel bins, S samples.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from omni.device import Device
from omni.device.cpu import CpuDevice
from omni.testing import SimulatedDevice, Simulation
from tests.support.painter import Bench
from tests.support.tiny_qwen2_5_omni import DiTPair

TOLERANCE = 1e-4
"""Of the peak."""


@pytest.fixture(scope="module")
def pair() -> DiTPair:
    return DiTPair.of(steps=2)


def bench(pair: DiTPair, device: Device | None = None, **options: Any) -> Bench:
    model: Any = pair.ours
    return Bench(device or CpuDevice(), model, **options)


def utterances(pair: DiTPair, *lengths: int) -> dict[str, tuple[Tensor, Tensor]]:
    return {f"{length} codes": (pair.codes(length, length), pair.noise(length, length)) for length in lengths}


def speak(stage: Bench, asked: dict[str, tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """All of them, one a tick later than the other; voices in turn."""
    for number, (name, (codes_N, noise_TM)) in enumerate(asked.items()):
        stage.speak(name, codes_N[:, None].numpy(), voice=number % 2, noise=noise_TM.numpy())
        stage.tick()
    with torch.inference_mode():
        stage.settle(stage.device)
    assert not stage.held
    return {name: torch.from_numpy(stage.wave(name)) for name in asked}


def error(made_S: Tensor, expected_S: Tensor) -> float:
    assert made_S.shape == expected_S.shape
    return float((made_S - expected_S).abs().max() / expected_S.abs().max())


def in_windows(
    pair: DiTPair, codes_N: Tensor, noise_TM: Tensor, voice: int, first: int, later: int, before: int, after: int
) -> Tensor:
    """transformers' spectrogram `[T, M]` of each window by itself."""
    block, repeats, pieces, done = pair.ours.block_frames, pair.ours.repeats, [], 0
    while done < len(codes_N):
        chunk = block * (later if done else first)
        start, whole = max(0, done - before * block), len(codes_N) - done < chunk + after * block
        end, fresh = (len(codes_N), len(codes_N) - done) if whole else (done + chunk + after * block, chunk)
        mel_TM = pair.expected(codes_N[start:end], noise_TM[start * repeats : end * repeats], voice)
        pieces.append(mel_TM[(done - start) * repeats :][: fresh * repeats])
        done += fresh
    return torch.cat(pieces)


@pytest.mark.parametrize("captured", [False, True])
def test_a_window_that_holds_everything_is_transformers_whole(pair: DiTPair, captured: bool) -> None:
    asked = utterances(pair, 3, 17, 38, 26)
    stage = bench(pair, first_chunk_blocks=10, max_num_seqs=3)
    if captured:
        with torch.inference_mode():
            stage.diffusion.capture([3, 1])
    made = speak(stage, asked)
    for number, (name, utterance) in enumerate(asked.items()):
        assert error(made[name], pair.voiced(pair.expected(*utterance, voice=number % 2))) < TOLERANCE


@pytest.mark.parametrize("sizes", [(1, 2, 1, 1), (2, 3, 2, 0)], ids=str)
def test_streams_equal_transformers_windows(pair: DiTPair, sizes: tuple[int, int, int, int]) -> None:
    first, later, before, after = sizes
    asked = utterances(pair, 5, 41, 30)
    stage = bench(
        pair, first_chunk_blocks=first, chunk_blocks=later, blocks_before=before, blocks_after=after, max_num_seqs=2
    )
    with torch.inference_mode():
        stage.diffusion.capture([2, 1])
    made = speak(stage, asked)
    for number, (name, utterance) in enumerate(asked.items()):
        expected = pair.voiced(in_windows(pair, *utterance, number % 2, first, later, before, after))
        assert error(made[name], expected) < TOLERANCE


@pytest.mark.parametrize("seed", [1])
def test_streams_on_a_late_device(seed: int) -> None:
    """Windows remember across launches that a simulated device delays and reorders, as far as it may."""
    pair, device = DiTPair.of(steps=2, look_ahead_layers=[], remembers=True), SimulatedDevice(seed)
    windows = {"first_chunk_blocks": 1, "chunk_blocks": 2, "blocks_before": 0, "blocks_after": 0, "max_num_seqs": 2}
    stage = bench(pair, device, **windows)
    stage.diffusion.capture([2, 1])
    device.synchronize()
    asked = utterances(pair, 14, 22, 9)
    stage.open(*asked)

    def tick() -> bool:
        with torch.inference_mode():
            return stage.tick()

    simulation = Simulation(device, tick, lambda: len(stage.ends) == len(asked) and not stage.held)
    for name, (codes_N, noise_TM) in asked.items():
        stage.give_voice(name, 0, noise_TM.numpy())
        stage.feed_pages(name, codes_N[:, None].numpy())
        stage.end(name)
    simulation.run()
    for name, utterance in asked.items():
        assert error(torch.from_numpy(stage.wave(name)), pair.voiced(pair.expected(*utterance))) < TOLERANCE
    device.assert_no_races()
