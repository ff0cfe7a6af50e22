"""Work of stages that read frames fails half-way on a device that is late: work launched before still runs, and
reads its frames."""

import numpy as np
import pytest
from numpy.typing import NDArray

from omni.errors import StageError
from omni.stage import Failed
from omni.testing.faults import FaultyStirredDevice
from tests.support import painter, wavemaker
from tests.support.faults import LateFrames
from tests.support.frame_bench import random_codes
from tests.support.tiers import MUTATION, chosen

SEEDS = range(4)
VOCODER = {"max_num_seqs": 3, "first_chunk_frames": 2, "chunk_frames": 3}
DIFFUSION = {"max_num_seqs": 2, "first_chunk_blocks": 1, "chunk_blocks": 2, "blocks_before": 1, "blocks_after": 1}
AGAIN = {"begin_windows", "render_part", "download_samples"}
"""Phases of a diffusion stage that run again, so that at most one request fails, alone."""
each_way = pytest.mark.parametrize("after", [False, True], ids=["instead", "after"])


@each_way
@pytest.mark.parametrize(
    ("phase", "number"),
    chosen(
        [("gather_rows", 1), ("reset_rows", 1)],
        [
            *(("copy_upload", 0), ("copy_upload", 3), ("copy_rows", 1), ("reset_rows", 0)),
            *(("decode_frames", 4), ("download_samples", 4)),
        ],
        MUTATION,
    ),
)
def test_only_the_batch_of_a_vocoder_that_fails_is_the_worse(phase: str, number: int, after: bool) -> None:
    """Of a batch that fails in its launch all may fail: how much is copied or decoded is not known."""
    codes = {name: random_codes(9 + 3 * index, index) for index, name in enumerate("abcd")}
    for seed in SEEDS:
        device = FaultyStirredDevice(seed)
        bench = wavemaker.Bench(device, **VOCODER)
        bench.open(*codes)
        device.fail(phase, number, after=after)
        failed = play(LateFrames(device, bench), codes, phase)
        assert len(failed) < len(codes)
        for name in codes.keys() - failed:
            bench.expect_whole(name, codes[name])


@pytest.mark.thorough
@pytest.mark.plants_faults
@each_way
@pytest.mark.parametrize(
    ("phase", "number"),
    chosen(
        [("gather_rows", 1), ("begin_windows", 3)],
        [
            *(("copy_upload", 0), ("copy_upload", 5), ("copy_rows", 1), ("begin_windows", 0), ("denoise_rows", 3)),
            *(("render_part", 2), ("download_samples", 0), ("download_samples", 2)),
        ],
        MUTATION,
    ),
)
def test_only_the_batch_of_a_denoiser_that_fails_is_the_worse(phase: str, number: int, after: bool) -> None:
    codes = {name: random_codes(7 + 5 * index, index) for index, name in enumerate("abc")}
    for seed in SEEDS:
        device = FaultyStirredDevice(seed)
        bench = painter.Bench(device, painter.Painter(context=3), **DIFFUSION)
        bench.open(*codes)
        for name, own in codes.items():
            bench.give_voice(name, 1, painter.noise_of(name, len(own)))
        device.fail(phase, number, after=after)
        failed = play(LateFrames(device, bench), codes, phase)
        assert len(failed) <= (1 if phase in AGAIN else 2)
        for name in codes.keys() - failed:
            bench.expect(name, codes[name])


def play(traffic: LateFrames, codes: dict[str, NDArray[np.int64]], phase: str) -> set[str]:
    """Plays to the end, with one fault and no race. Returns the requests that failed, each with the fault."""
    traffic.play(codes)
    traffic.device.assert_no_races()
    assert traffic.device.failures == 1
    for name in traffic.failed:
        assert isinstance(end := traffic.bench.ends[name], Failed)
        assert isinstance(end.error, StageError)
        assert f"in phase {phase}: PlantedError: planted" in str(end.error)
    return traffic.failed
