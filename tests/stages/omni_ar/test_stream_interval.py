"""Tokens of a request, and their frames, that are passed on together (`ArOptions.stream_interval`)."""

import pytest
import torch
from msgspec.structs import replace

from omni.payload import GeneratedTokens, PageSlice
from omni.sampling import HostRules, StopVerdict
from omni.testing.simulation.late import QueuedDevice
from omni_ar.inputs import TokenCodes
from omni_ar.options import ArOptions
from tests.support.ar_driver import ArDriver
from tests.support.small_codec import SmallCodec, codec_prompt, spoken
from tests.support.small_text import SmallText, greedy

PROMPT, TEXTS, PAD, TOKENS = codec_prompt([1, 2, 3], [4, 5, 6]), [7, 8], 2, 20
LONG = codec_prompt([n % 23 for n in range(16)], [3 * n % 37 for n in range(16)])
FRAMES = spoken(SmallCodec(), PROMPT, TEXTS, PAD, TOKENS)


class NothingStops:
    """Stop strings that no token begins."""

    def push(self, token: int) -> StopVerdict:
        return StopVerdict(0, False)


def codec_driver(interval: int | None, **changes: object) -> tuple[ArDriver, QueuedDevice]:
    device = QueuedDevice()
    options = ArOptions(max_num_seqs=2, block_size=4, max_in_flight=4, stream_interval=interval)
    return ArDriver(SmallCodec(), device, replace(options, **changes)), device


def speak(driver: ArDriver, name: str = "0", **sampling: object) -> None:
    driver.speak(name, PROMPT, TEXTS, sampling, pad=PAD, max_tokens=TOKENS)


def run_with_steps_in_flight(driver: ArDriver, device: QueuedDevice, tokens: int) -> None:
    """Until the host has read so many tokens of request "0". The device always has a further step."""
    driver.tick()
    while "0" in driver.worker.requests and len(driver.worker.requests["0"].outputs) < tokens:
        driver.tick()
        with torch.inference_mode():
            device.run({"ar"}, operations=1)


def sizes(driver: ArDriver, name: str = "0") -> tuple[list[int], list[int]]:
    """Tokens and frames of each payload."""
    tokens = [len(meta.ids) for meta in driver.metas(name) if isinstance(meta, GeneratedTokens)]
    parts = [
        produced.payload.tensors["codes"]
        for produced in driver.produced[name]
        if isinstance(produced.payload.meta, TokenCodes)
    ]
    assert all(isinstance(part, PageSlice) for part in parts)
    return tokens, [part.shape[0] for part in parts]


def check_spoken(driver: ArDriver, name: str = "0") -> None:
    assert driver.tokens(name) == [frame[0] for frame in FRAMES]
    assert driver.frames(name) == FRAMES[:-1]


def test_later_tokens_and_frames_are_passed_on_together() -> None:
    driver, device = codec_driver(4)
    speak(driver)
    run_with_steps_in_flight(driver, device, TOKENS)
    driver.gather_all()
    tokens, frames = sizes(driver)
    assert tokens == [1, 1, 1, 1, 4, 4, 4, 4]
    assert frames == [1, 1, 1, 1, 4, 4, 4, 3], "the last token begins none"
    check_spoken(driver)
    device.assert_no_races()


def test_a_token_waits_only_for_a_step_in_flight() -> None:
    """A paused request runs no further step: its buffered tokens are passed on once the last one is read."""
    driver, device = codec_driver(8)
    speak(driver)
    run_with_steps_in_flight(driver, device, 11)
    assert sum(sizes(driver)[0]) == 8, "three are held"
    driver.pause("0")
    driver.run()
    read = len(driver.worker.requests["0"].outputs)
    assert 11 < read < TOKENS
    assert sizes(driver)[0] == [1] * 8 + [read - 8]
    driver.resume("0")
    driver.gather_all()
    check_spoken(driver)
    device.assert_no_races()


@pytest.mark.parametrize("interval", [1, 3, 8])
def test_frames_are_those_of_any_interval_under_preemption(interval: int) -> None:
    driver, device = codec_driver(interval, num_blocks=7, prefix_cache=False)
    for name in ("0", "1"):
        speak(driver, name)
    for _ in range(2000):
        if len(driver.ends) == 2:
            break
        driver.tick()
        driver.gather()
        with torch.inference_mode():
            device.run({"ar"}, operations=6)
            device.run({"ar-payload"})
    driver.gather_all()
    assert driver.counter("preemptions")
    for name in ("0", "1"):
        check_spoken(driver, name)
    assert not driver.held
    device.assert_no_races()


def test_blocks_of_frames_that_are_held_are_kept() -> None:
    """The turn that reads a request's last steps gives its blocks to another request: the frames are not passed on yet."""
    driver, device = codec_driver(4, num_blocks=7, prefix_cache=False)
    speak(driver)
    run_with_steps_in_flight(driver, device, 11)
    with torch.inference_mode():
        device.synchronize()
        driver.gather()
        device.synchronize()
    driver.pause("0")
    driver.speak("1", LONG, TEXTS, pad=PAD, max_tokens=8)
    driver.tick()
    assert driver.counter("preemptions") == 1
    driver.gather_all()
    driver.resume("0")
    driver.gather_all()
    check_spoken(driver)
    assert driver.frames("1") == spoken(SmallCodec(), LONG, TEXTS, PAD, 8)[:-1]
    device.assert_no_races()


def test_tokens_read_after_a_preemption_are_passed_on() -> None:
    """A request is preempted with steps in flight, and starts again in other blocks."""
    driver, device = codec_driver(4, num_blocks=7, prefix_cache=False)
    speak(driver)
    run_with_steps_in_flight(driver, device, 11)
    driver.pause("0")
    while driver.worker.usage()["steps"] == 4:
        driver.tick()
        with torch.inference_mode():
            device.run({"ar"}, operations=1)
    driver.speak("1", LONG, TEXTS, pad=PAD, max_tokens=8)
    driver.tick()
    assert driver.counter("preemptions") == 1
    driver.abort("1")
    driver.resume("0")
    driver.speak("2", PROMPT, TEXTS, pad=PAD, max_tokens=8, order=(-1, 0))  # first, so that the blocks are not the same
    with torch.inference_mode():
        device.synchronize()
        driver.gather()
        device.synchronize()
    driver.gather_all()
    check_spoken(driver)
    assert driver.frames("2") == FRAMES[:7]
    device.assert_no_races()


def test_an_abort_frees_the_blocks_of_buffered_tokens() -> None:
    driver, device = codec_driver(8)
    speak(driver)
    run_with_steps_in_flight(driver, device, 11)
    driver.abort("0")
    driver.release_lent()
    driver.run()
    driver.release_lent()
    driver.run()
    assert not driver.held
    assert sum(sizes(driver)[0]) == 8, "the held ones have no consumer"


def test_tokens_with_logprobs_or_stop_strings_are_passed_on_one_by_one() -> None:
    device = QueuedDevice()
    options = ArOptions(max_num_seqs=3, block_size=4, max_in_flight=4, stream_interval=4)
    driver = ArDriver(SmallText(), device, options)
    driver.ask("0", [1, 2, 3], max_tokens=12)
    driver.ask("scored", [1, 2, 3], max_tokens=12, logprobs=1)
    driver.ask("stoppable", [1, 2, 3], max_tokens=12, rules=HostRules(stops=NothingStops()))
    run_with_steps_in_flight(driver, device, 12)
    driver.gather_all()
    made = greedy(SmallText(), [1, 2, 3], 12)
    assert [driver.tokens(name) for name in ("0", "scored", "stoppable")] == [made] * 3
    assert sizes(driver)[0] == [1] * 4 + [4, 4]
    assert [sizes(driver, name)[0] for name in ("scored", "stoppable")] == [[1] * 12] * 2
    assert [one.first for one in driver.logprobs("scored")] == list(range(12))


def test_only_a_codec_model_passes_tokens_on_together_by_default() -> None:
    driver, device = codec_driver(None)
    speak(driver)
    run_with_steps_in_flight(driver, device, TOKENS)
    driver.gather_all()
    assert sizes(driver)[0] == [1] * 5 + [5] * 3
    text = ArDriver(SmallText(), QueuedDevice(), ArOptions(max_num_seqs=2, block_size=4, max_in_flight=4))
    text.ask("0", [1, 2, 3], max_tokens=12)
    text.gather_all()
    assert sizes(text)[0] == [1] * 12
