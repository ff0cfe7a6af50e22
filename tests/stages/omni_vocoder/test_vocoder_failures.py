"""Work of a vocoder that fails half-way on a device that is late: what was launched before still runs, and reads what it reads."""

import pytest

from omni.errors import StageError
from omni.stage import Failed
from tests.support.faults import LateFaultyDevice, LateFrames
from tests.support.frame_bench import random_codes
from tests.support.tiers import MUTATION, chosen
from tests.support.wavemaker import Bench

CODES = {name: random_codes(9 + 3 * number, number) for number, name in enumerate("abcd")}
SEEDS = range(4)
WHOLE = {"copy_upload": 0, "gather_rows": 1, "copy_rows": 1, "decode_frames": 4, "download_samples": 4}
"""Of each batch that fails so, all may fail: how much is copied or decoded is not known."""


@pytest.mark.parametrize("after", [False, True], ids=["instead", "after"])
@pytest.mark.parametrize(
    ("phase", "number"),
    chosen([("gather_rows", 1), ("reset_rows", 1)], [*WHOLE.items(), ("copy_upload", 3), ("reset_rows", 0)], MUTATION),
)
def test_only_the_batch_that_fails_is_the_worse(phase: str, number: int, after: bool) -> None:
    for seed in SEEDS:
        device = LateFaultyDevice(seed)
        traffic = LateFrames(device, bench := Bench(device, max_num_seqs=3, first_chunk_frames=2, chunk_frames=3))
        bench.open(*CODES)
        device.fail(phase, number, after=after)
        traffic.play(CODES)
        assert device.faults == 1
        assert len(traffic.failed) < len(CODES)
        for name, codes in CODES.items():
            if name not in traffic.failed:
                bench.expect_whole(name, codes)
                continue
            assert isinstance(end := bench.ends[name], Failed)
            assert isinstance(end.error, StageError)
            assert f"in phase {phase}: ValueError: a fault" in str(end.error)
        device.assert_no_races()
