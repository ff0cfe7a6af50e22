"""A stage whose token begins a frame, under the same pressure: frames are those of full recomputation."""

import functools
from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from omni_ar.options import ArOptions
from tests.support.ar_driver import ArDriver
from tests.support.devices import DEVICES
from tests.support.small_codec import SmallCodec, codec_prompt, spoken
from tests.support.tiers import SLOW, few

pytestmark = pytest.mark.thorough

MODEL = SmallCodec()
LENGTHS = [1, 4, 9, 14, 6]
PROMPTS = [
    codec_prompt([(3 * n + p) % 23 for p in range(length)], [(5 * n + p * p) % 37 for p in range(length)])
    for n, length in enumerate(LENGTHS)
]
TEXTS = [[(n + step * step) % 23 for step in range(6)] for n in range(len(LENGTHS))]
PAD, TOKENS = 2, 15
LITTLE = 10
"""Blocks of 3 tokens: the longest request takes all of them."""


@functools.cache
def frames(index: int) -> list[list[int]]:
    return spoken(MODEL, PROMPTS[index], TEXTS[index], PAD, TOKENS)


def options(**changes: object) -> ArOptions:
    return replace(ArOptions(max_num_seqs=3, block_size=3), **changes)


def speak_all(driver: ArDriver, prefix: str = "", params: Mapping[str, object] = {}) -> None:
    for index, prompt in enumerate(PROMPTS):
        driver.speak(f"{prefix}{index}", prompt, TEXTS[index], params, pad=PAD, max_tokens=TOKENS)


def check_all(driver: ArDriver, prefix: str = "") -> None:
    for index in range(len(PROMPTS)):
        assert driver.tokens(f"{prefix}{index}") == [frame[0] for frame in frames(index)]
        assert driver.frames(f"{prefix}{index}") == frames(index)[:-1]
        assert driver.done(f"{prefix}{index}").counts["frames"] == TOKENS - 1
    assert not driver.held


def test_the_reference_is_not_degenerate():
    spoken_all = [tuple(map(tuple, frames(index))) for index in range(len(PROMPTS))]
    assert all(len(set(one)) > TOKENS // 2 for one in spoken_all)
    assert len(set(spoken_all)) == len(spoken_all)
    other = spoken(MODEL, PROMPTS[2], [5, *TEXTS[2][1:]], PAD, TOKENS)
    assert other[0] == frames(2)[0]
    assert other[1:] != frames(2)[1:], "conditioning makes a difference"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("budget", few(2, [3, 100, 1, 7], SLOW))
def test_prompts_in_chunks(budget: int, device: str):
    driver = ArDriver(MODEL, DEVICES[device](), options(max_num_batched_tokens=budget))
    speak_all(driver)
    driver.gather_all()
    check_all(driver)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize("budget", few(1, [7, 1, 100], SLOW))
def test_too_few_blocks_and_a_consumer_that_gathers_in_the_end(budget: int, cache: bool, device: str):
    driver = ArDriver(
        MODEL, DEVICES[device](), options(num_blocks=LITTLE, prefix_cache=cache, max_num_batched_tokens=budget)
    )
    speak_all(driver)
    driver.run()
    assert len(driver.ends) == len(PROMPTS), "no consumer stops the producer"
    assert driver.counter("preemptions") > 0
    assert driver.counter("spilled_rows") > 0
    assert driver.held["spilled"] > 0
    driver.gather_all()
    check_all(driver)


@pytest.mark.parametrize("budget", [2, 100])
def test_sampled_frames_do_not_depend_on_preemption(budget: int):
    asked = {"temperature": 0.9, "top_k": 20, "repetition_penalty": 1.1, "seed": 11}
    roomy = ArDriver(MODEL, options=options(max_num_seqs=5))
    tight = ArDriver(MODEL, options=options(num_blocks=LITTLE, max_num_batched_tokens=budget))
    for driver in (roomy, tight):
        speak_all(driver, params=asked)
        driver.gather_all()
    assert roomy.counter("preemptions") == 0
    assert tight.counter("preemptions") > 0
    assert tight.all_tokens(len(PROMPTS)) == roomy.all_tokens(len(PROMPTS))
    for index in range(len(PROMPTS)):
        assert tight.frames(str(index)) == roomy.frames(str(index))
    assert roomy.frames("2") != frames(2)[:-1]
