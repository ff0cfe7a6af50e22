"""Every wait of an edge into host memory, left out in turn: a wrong row or the checker tells, so each is needed."""

import pytest

from omni.device import COMPLETED
from omni.testing.simulation import SimulatedDevice, find_waits
from support.host_bench import HostBench

SEEDS = range(40)
WAITS = sorted(find_waits("omni.engine.host"))


def play(seed: int, without: str | None = None) -> SimulatedDevice:
    """Payload of a producer that moves it and reuses its memory, for a consumer with work of its own. Raises for a wrong row."""
    device = SimulatedDevice(seed, without=without)
    bench = HostBench(device, slots=seed % 3, slot_bytes=256, piece_bytes=64)
    assert device.schedule is not None
    chance = device.schedule.random.random
    left = [1, 7, 2, 12, 3] * 3
    while left or any(not sent.over for sent in bench.sent):
        if left and len(bench.under_way) < 3:
            bench.send(left.pop(), scattered=chance() < 0.5)
            device.stall("clerk", 0.01 * chance())
        bench.poll()
        for sent in bench.sent:
            if sent.readable and not sent.over:
                bench.expect(sent)
                if chance() < 0.5:
                    device.launch(bench.consumer, expect_late, bench, sent)
                    bench.release(sent, device.record(bench.consumer))
                else:
                    bench.release(sent, COMPLETED)
            elif chance() < 0.3:
                bench.move(sent)
        bench.reuse()
        device.host_step()
    device.synchronize()
    return device


def expect_late(bench: HostBench, sent: object) -> None:
    """The consumer's own work reads the payload once more."""
    assert any(one is sent and bench.expect(one) is None for one in bench.sent)


def test_nothing_is_wrong_with_all_of_them() -> None:
    for seed in SEEDS:
        play(seed).assert_no_races()


@pytest.mark.parametrize("wait", WAITS)
def test_each_is_needed(wait: str) -> None:
    def wrong(seed: int) -> bool:
        try:
            return bool(play(seed, wait).races)
        except AssertionError:
            return True

    assert any(wrong(seed) for seed in SEEDS), f"{wait} is superfluous"
