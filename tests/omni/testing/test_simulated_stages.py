"""Stages, whole engines and their connectors on the simulated device, as they are: right results, and no access out of order."""

from functools import cache, partial

import numpy as np
import pytest
from numpy.typing import NDArray

from omni.testing import SimulatedDevice, find_waits
from omni_ar.inputs import Prompt
from omni_ar.options import ArOptions
from tests.support import painter, wavemaker
from tests.support.ar_driver import ArDriver
from tests.support.faults import simulate
from tests.support.frame_bench import FrameBench, random_codes
from tests.support.small_codec import SmallCodec, codec_prompt, spoken
from tests.support.small_text import SmallText, greedy

pytestmark = pytest.mark.thorough

SEEDS = range(4)
TEXT = SmallText()
CODEC = SmallCodec()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_text_stage(seed: int):
    device = SimulatedDevice(seed)
    options = ArOptions(max_num_seqs=2, block_size=4, num_blocks=12, max_num_batched_tokens=7)
    driver = ArDriver(TEXT, device, options)
    prompts = [[(7 * n + p) % 61 for p in range(3 + 4 * n)] for n in range(5)]
    simulation = simulate(device, driver.tick, lambda: len(driver.ends) == 5 and not driver.held)
    for index, prompt in enumerate(prompts):
        simulation.sometime(60, partial(driver.ask, str(index), prompt, max_tokens=8), f"ask {index}")
    simulation.run()
    for index, prompt in enumerate(prompts):
        assert driver.tokens(str(index)) == greedy(TEXT, prompt, 8)
    device.assert_no_races()


@cache
def frames(index: int) -> list[list[int]]:
    return spoken(CODEC, codec_prompts()[index], [4, 9, 2], 1, 10)


@cache
def codec_prompts() -> list[Prompt]:
    return [codec_prompt(list(range(n, 3 * n + 1)), [5] * (2 * n + 1)) for n in range(4)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_codec_stage_whose_consumer_gathers_now_and_then(seed: int):
    device = SimulatedDevice(seed)
    driver = ArDriver(CODEC, device, ArOptions(max_num_seqs=3, block_size=3, num_blocks=9))

    def idle() -> bool:
        return len(driver.ends) == 4 and not driver.lent and not driver.held

    simulation = simulate(device, lambda: driver.tick() | (simulation.ticks % 9 == 0 and driver.gather()), idle)
    for index, prompt in enumerate(codec_prompts()):
        driver.speak(str(index), prompt, max_tokens=10)
        simulation.sometime(40, partial(driver.condition, str(index), [4, 9, 2], 1), f"condition {index}")
    simulation.run()
    for index in range(4):
        assert driver.frames(str(index)) == frames(index)[:-1]
    device.assert_no_races()


FRAMES = {name: random_codes(6 + 4 * number, number) for number, name in enumerate("abc")}


def feed_halves(device: SimulatedDevice, bench: FrameBench) -> None:
    """Feeds `FRAMES` in halves, and drives the stage until nothing is held."""
    simulation = simulate(device, bench.tick, lambda: len(bench.ends) == len(FRAMES) and not bench.held)

    def feed_rest(name: str, codes: NDArray[np.int64]) -> None:
        bench.feed_pages(name, codes)
        bench.end(name)

    for name, codes in FRAMES.items():
        first, rest = np.array_split(codes, 2)
        tick = simulation.sometime(50, partial(bench.feed_pages, name, first), "feed")
        simulation.at(tick + 20, partial(feed_rest, name, rest), "feed the rest")
    simulation.run()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_vocoder(seed: int):
    device = SimulatedDevice(seed)
    bench = wavemaker.Bench(device, max_num_seqs=2, first_chunk_frames=2, chunk_frames=3)
    bench.open(*FRAMES)
    feed_halves(device, bench)
    for name, codes in FRAMES.items():
        bench.expect_whole(name, codes)
    device.assert_no_races()


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
def test_a_denoiser(seed: int, graphs: bool):
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
