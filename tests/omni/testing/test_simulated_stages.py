"""A denoising stage on the simulated device: right results, and no access out of order. `test_mixed_traffic` has the others."""

from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from omni.testing import SimulatedDevice, find_waits
from tests.support import painter
from tests.support.faults import simulate
from tests.support.frame_bench import FrameBench, random_codes

pytestmark = pytest.mark.thorough

FRAMES = {name: random_codes(6 + 4 * number, number) for number, name in enumerate("abc")}


def feed_halves(device: SimulatedDevice, bench: FrameBench) -> None:
    """Feeds `FRAMES` in halves, and drives the stage until no memory is held."""
    simulation = simulate(device, bench.tick, lambda: len(bench.ends) == len(FRAMES) and not bench.held)

    def feed_rest(name: str, codes: NDArray[np.int64]) -> None:
        bench.feed_pages(name, codes)
        bench.end(name)

    for name, codes in FRAMES.items():
        first, rest = np.array_split(codes, 2)
        tick = simulation.sometime(50, partial(bench.feed_pages, name, first), "feed")
        simulation.at(tick + 20, partial(feed_rest, name, rest), "feed the rest")
    simulation.run()


def denoise(device: SimulatedDevice, graphs: bool) -> None:
    options = {"max_num_seqs": 2, "first_chunk_blocks": 1, "chunk_blocks": 2, "blocks_before": 1, "blocks_after": 1}
    bench = painter.Bench(device, painter.Painter(context=3), **options)
    if graphs:
        bench.diffusion.capture([2, 1])
        device.synchronize()
    bench.open(*FRAMES)
    for name, codes in FRAMES.items():
        bench.give_voice(name, 1, painter.noise_of(name, len(codes)))
    feed_halves(device, bench)
    for name, codes in FRAMES.items():
        bench.expect(name, codes)
    device.assert_no_races()


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_denoiser_on_the_simulated_device(seed: int, graphs: bool):
    denoise(SimulatedDevice(seed), graphs)


@pytest.mark.mutation
@pytest.mark.parametrize("wait", ["omni.device.ring.HostSlot.free#1", "omni.device.download.Downloader.send#1"])
def test_without_a_wait_a_denoiser_goes_wrong(wait: str):
    assert not find_waits("omni_diffusion"), "it waits by what the framework has"

    def harmed(seed: int) -> bool:
        try:
            denoise(SimulatedDevice(seed, without=wait), graphs=False)
        except Exception:
            return True
        return False

    assert any(harmed(seed) for seed in range(4))
