"""Every wait of an edge into host memory, left out in turn: a wrong row or the checker tells, so each is needed."""

import pytest

from omni.testing.simulation import SimulatedDevice, find_waits
from support.host_bench import play

SEEDS = range(40)
WAITS = sorted(find_waits("omni.engine.host"))


def run(seed: int, without: str | None = None) -> SimulatedDevice:
    device = SimulatedDevice(seed, without=without)
    play(device, seed)
    return device


def test_nothing_is_wrong_with_all_of_them() -> None:
    for seed in SEEDS:
        run(seed).assert_no_races()


@pytest.mark.parametrize("wait", WAITS)
def test_each_is_needed(wait: str) -> None:
    def wrong(seed: int) -> bool:
        try:
            return bool(run(seed, wait).races)
        except AssertionError:
            return True

    assert any(wrong(seed) for seed in SEEDS), f"{wait} is superfluous"
