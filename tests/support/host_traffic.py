"""Payload over an edge into host memory: its producer moves it and reuses its memory, its consumer has work of its own."""

from omni.device import COMPLETED
from omni.testing import SimulatedDevice
from support.host_bench import HostBench, Sent


def play(device: SimulatedDevice, seed: int) -> None:
    """Until all of it is read. Raises AssertionError for a wrong row. seed: the device's."""
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


def expect_late(bench: HostBench, sent: Sent) -> None:
    """The consumer's own work reads the payload once more."""
    bench.expect(sent)
