"""Work of a diffusion stage that fails half-way on a device that is late: what was launched before still runs."""

import pytest

from omni.stage import Failed
from tests.support.faults import LateFaultyDevice, LateFrames
from tests.support.frame_bench import random_codes
from tests.support.painter import Bench, Painter, noise_of
from tests.support.tiers import MUTATION, chosen

pytestmark = pytest.mark.thorough

OPTIONS = {"max_num_seqs": 2, "first_chunk_blocks": 1, "chunk_blocks": 2, "blocks_before": 1, "blocks_after": 1}
CODES = {name: random_codes(7 + 5 * number, number) for number, name in enumerate("abc")}
SEEDS = range(4)
AGAIN = {"begin_windows", "render_piece", "download_samples"}
"""What is tried again, so that nobody fails who was not alone."""


@pytest.mark.parametrize("after", [False, True], ids=["instead", "after"])
@pytest.mark.parametrize(
    ("phase", "number"),
    chosen(
        [("gather_rows", 1), ("begin_windows", 3)],
        [
            ("copy_upload", 0),
            ("copy_upload", 5),
            ("copy_rows", 1),
            ("begin_windows", 0),
            ("denoise_rows", 3),
            ("render_piece", 2),
            ("download_samples", 0),
            ("download_samples", 2),
        ],
        MUTATION,
    ),
)
def test_only_the_batch_that_fails_is_the_worse(phase: str, number: int, after: bool) -> None:
    for seed in SEEDS:
        device = LateFaultyDevice(seed)
        traffic = LateFrames(device, bench := Bench(device, Painter(context=3), **OPTIONS))
        bench.open(*CODES)
        for name, codes in CODES.items():
            bench.give_voice(name, 1, noise_of(name, len(codes)))
        device.fail(phase, number, after=after)
        traffic.play(CODES)
        assert device.faults == 1
        assert len(traffic.failed) <= (1 if phase in AGAIN else 2)
        for name, codes in CODES.items():
            if name not in traffic.failed:
                bench.expect(name, codes)
                continue
            assert isinstance(end := bench.ends[name], Failed)
            assert f"in phase {phase}: ValueError: a fault" in str(end.error)
        device.assert_no_races()
