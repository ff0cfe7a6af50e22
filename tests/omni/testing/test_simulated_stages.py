"""Stages, whole engines and their connectors on the simulated device, as they are: right results, and no access out of order."""

import functools
from collections.abc import Callable

import numpy as np
import pytest
import torch

from omni.stage import Done
from omni.testing import SimulatedDevice, Simulation, find_waits
from omni_ar.options import ArOptions
from tests.support.ar_driver import ArDriver
from tests.support.frame_bench import random_codes
from tests.support.omni_engine import OmniEngine, assert_same
from tests.support.reference import chat, picture, reference_of, sizes, sound, tiny_checkpoint
from tests.support.small_codec import SmallCodec, codec_prompt, spoken
from tests.support.small_text import SmallText, greedy
from tests.support.wavemaker import Bench

pytestmark = pytest.mark.thorough

SEEDS = range(6)
TEXT = SmallText()
CODEC = SmallCodec()


def simulate(device: SimulatedDevice, tick: Callable[[], bool], idle: Callable[[], bool]) -> Simulation:
    def inferring() -> bool:
        with torch.inference_mode():
            return tick()

    return Simulation(device, inferring, idle)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_text_stage(seed: int):
    device = SimulatedDevice(seed)
    options = ArOptions(max_num_seqs=2, block_size=4, num_blocks=12, max_num_batched_tokens=7)
    driver = ArDriver(TEXT, device, options)
    prompts = [[(7 * n + p) % 61 for p in range(3 + 4 * n)] for n in range(5)]
    simulation = simulate(device, driver.tick, lambda: len(driver.ends) == 5 and not driver.held)
    for index, prompt in enumerate(prompts):
        simulation.sometime(60, lambda i=index, p=prompt: driver.ask(str(i), p, max_tokens=8), f"ask {index}")
    simulation.run()
    for index, prompt in enumerate(prompts):
        assert driver.tokens(str(index)) == greedy(TEXT, prompt, 8)
    device.assert_no_races()


@functools.cache
def frames(index: int) -> list[list[int]]:
    return spoken(CODEC, codec_prompts()[index], [4, 9, 2], 1, 10)


@functools.cache
def codec_prompts() -> list:
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
        simulation.sometime(40, lambda i=index: driver.condition(str(i), [4, 9, 2], 1), f"condition {index}")
    simulation.run()
    for index in range(4):
        assert driver.frames(str(index)) == frames(index)[:-1]
    device.assert_no_races()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_vocoder(seed: int):
    device = SimulatedDevice(seed)
    bench = Bench(device, max_num_seqs=2, first_chunk_frames=2, chunk_frames=3)
    codes = {name: random_codes(5 + 4 * number, number) for number, name in enumerate("abcd")}
    bench.open(*codes)
    simulation = simulate(device, bench.tick, lambda: len(bench.ends) == 4 and not bench.held)
    for name, rows in codes.items():
        halves = np.array_split(rows, 2)
        first = simulation.sometime(50, lambda n=name, r=halves[0]: bench.feed_pages(n, r), "feed")
        simulation.at(first + 20, lambda n=name, r=halves[1]: (bench.feed_pages(n, r), bench.end(n)), "feed the rest")
    simulation.run()
    for name, rows in codes.items():
        assert isinstance(bench.ends[name], Done)
        bench.expect_whole(name, rows)
    device.assert_no_races()


SHAPE = sizes(seed=81, stop_gain=0.0, codec_stop_gain=0.0)
CHATS = [
    chat("what is it", sound(0.5, 1), picture(64, 96, 2), max_text=9, max_codes=14),
    chat("hello there", max_text=12, max_codes=30),
    chat(picture(40, 40, 3), "x", max_text=3, max_codes=6),
]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_whole_engine(seed: int):
    folder, device = tiny_checkpoint(**SHAPE), SimulatedDevice(seed)
    engine = OmniEngine(folder, {"talker.max_num_seqs": 2, "code2wav.chunk_frames": 5}, device)
    for result, asked in zip(engine.run(CHATS, [0, 3, 9]), CHATS, strict=True):
        assert_same(result, reference_of(folder).answer(asked))
    device.assert_no_races()
    own = find_waits("omni_encoder", "omni_local")
    assert own <= device.waits.counts.keys(), own - device.waits.counts.keys()
