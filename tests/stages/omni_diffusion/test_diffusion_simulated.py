"""The diffusion stage on the simulated device: right results, no access out of order, and no wait that is not needed."""

import pytest
import torch

from omni.testing import SimulatedDevice, Simulation, find_waits
from tests.support.frame_bench import random_codes
from tests.support.painter import Bench, Painter, noise_of

OPTIONS = {"max_num_seqs": 2, "first_chunk_blocks": 1, "chunk_blocks": 2, "blocks_before": 1, "blocks_after": 1}
CODES = {name: random_codes(6 + 7 * number, number) for number, name in enumerate("abc")}


def run(device: SimulatedDevice, graphs: bool) -> Bench:
    bench = Bench(device, Painter(context=3), **OPTIONS)
    if graphs:
        bench.diffusion.capture([2, 1])
        device.synchronize()
    bench.open(*CODES)

    def tick() -> bool:
        with torch.inference_mode():
            return bench.tick()

    simulation = Simulation(device, tick, lambda: len(bench.ends) == len(CODES) and not bench.held)
    for name, codes in CODES.items():
        half = len(codes) // 2
        bench.give_voice(name, 1, noise_of(name, len(codes)))
        first = simulation.sometime(50, lambda n=name, r=codes[:half]: bench.feed_pages(n, r), "feed")
        simulation.at(
            first + 20, lambda n=name, r=codes[half:]: (bench.feed_pages(n, r), bench.end(n)), "feed the rest"
        )
    simulation.run()
    return bench


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_streams_on_a_late_device(seed: int, graphs: bool) -> None:
    device = SimulatedDevice(seed)
    bench = run(device, graphs)
    for name, codes in CODES.items():
        bench.expect(name, codes)
    device.assert_no_races()


@pytest.mark.mutation
@pytest.mark.parametrize("wait", ["omni.device.ring.HostSlot.free#1", "omni.device.download.Downloader.send#1"])
def test_without_a_wait_something_goes_wrong(wait: str) -> None:
    assert not find_waits("omni_diffusion"), "it waits by what the framework has"

    def harmed(seed: int) -> bool:
        device = SimulatedDevice(seed, without=wait)
        try:
            bench = run(device, graphs=False)
            for name, codes in CODES.items():
                bench.expect(name, codes)
            device.assert_no_races()
        except Exception:
            return True
        return False

    assert any(harmed(seed) for seed in range(4))
