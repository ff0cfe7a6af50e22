"""A stage whose token begins a frame, under the same pressure: frames are those of full recomputation."""

import functools
from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace
from torch import Tensor

from omni.device import Graph, Launch, Phase, Stream
from omni.stage import Listeners
from omni_ar.kernels import overlap
from omni_ar.options import ArOptions
from omni_ar.run import codes
from omni_ar.run.late_phases import predict_codes
from tests.support.ar_driver import ArDriver
from tests.support.devices import DEVICES, CountingDevice
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
    ample = ArDriver(MODEL, options=options(max_num_seqs=5))
    tight = ArDriver(MODEL, options=options(num_blocks=LITTLE, max_num_batched_tokens=budget))
    for driver in (ample, tight):
        speak_all(driver, params=asked)
        driver.gather_all()
    assert ample.counter("preemptions") == 0
    assert tight.counter("preemptions") > 0
    assert tight.all_tokens(len(PROMPTS)) == ample.all_tokens(len(PROMPTS))
    for index in range(len(PROMPTS)):
        assert tight.frames(str(index)) == ample.frames(str(index))
    assert ample.frames("2") != frames(2)[:-1]


@pytest.mark.parametrize("captured", [True, False])
def test_frames_of_many_rows_run_in_turn_while_someone_waits(captured: bool, monkeypatch: pytest.MonkeyPatch):
    """Their kernels, that is: those of frames of two rows here, between the first listener's coming and the first sound."""
    in_turn: list[tuple[str, bool]] = []
    waits: list[bool] = []
    monkeypatch.setattr(codes, "overlaps", lambda tensor: True)
    monkeypatch.setattr(codes, "_MANY_ROWS", 2)

    class Watching(CountingDevice):
        def capture(self, stream: Stream, name: str, launches: Sequence[Launch]) -> Graph:
            if "codes" in name:
                assert overlap._in_turn.get() == ("in-turn" in name)
            return super().capture(stream, name, launches)

        def replay(self, stream: Stream, graph: Graph) -> None:
            if "codes" in graph.name:
                waits.append(listeners.waiting)
                in_turn.append((graph.name.rpartition("-")[2], "in-turn" in graph.name))
            super().replay(stream, graph)

        def launch(self, stream: Stream, phase: Phase, *buffers: object) -> None:
            if phase is predict_codes and not captured:
                rows_R = buffers[3]
                assert isinstance(rows_R, Tensor)
                waits.append(listeners.waiting)
                in_turn.append((str(len(rows_R)), overlap._in_turn.get()))
            super().launch(stream, phase, *buffers)

    listeners = Listeners()
    driver = ArDriver(MODEL, Watching(), options(graph_batch_sizes=(3, 1)), captured=captured, listeners=listeners)
    for index, prompt in enumerate(PROMPTS[:3]):
        driver.speak(str(index), prompt, TEXTS[index], {}, pad=PAD, max_tokens=TOKENS)
    listeners.join("0")
    for _ in range(6):
        driver.tick()
    listeners.reach_sound_stages("0")
    for _ in range(3):
        driver.tick()
    listeners.add_sound("0", 1.0)
    driver.gather_all()
    for index in range(3):
        assert driver.frames(str(index)) == frames(index)[:-1]
    expected = [waiting and size != "1" for waiting, (size, _) in zip(waits, in_turn, strict=True)]
    assert [chosen for _, chosen in in_turn] == expected
    assert {True, False} == set(expected)
