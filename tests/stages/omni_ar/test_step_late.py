"""Tokens that the host reads late: of requests that ended meanwhile, and of those that lost their blocks."""

import pytest
import torch

from omni.sampling import HostRules, StopVerdict
from omni_ar.options import ArOptions
from tests.support.ar_driver import ArDriver
from tests.support.devices import QueuedDevice
from tests.support.small_text import SmallText, greedy

PROMPTS = [[5, 9, 2, 44, 17, 3, 3, 8], [1, 60, 33]]


class StopAt:
    """Stops at a token, as a matcher of texts does at a string that one token completes."""

    def __init__(self, token: int) -> None:
        self._token = token

    def push(self, token: int) -> StopVerdict:
        return StopVerdict(int(token == self._token), token == self._token)


def test_tokens_after_a_stop_string_are_dropped_before_log_probs_come():
    """The device knows no stop strings: its steps in flight go on, and the request's end waits for its log-probabilities."""
    device, model = QueuedDevice(), SmallText()
    driver = ArDriver(model, device, ArOptions(max_num_seqs=2, block_size=4, max_in_flight=4))
    said = greedy(model, PROMPTS[0], 8)
    stop = said[2]
    assert stop not in said[:2]
    driver.ask("0", PROMPTS[0], rules=HostRules(stops=StopAt(stop)), max_tokens=8, logprobs=1)
    for _ in range(4):
        driver.tick()
    assert driver.held["steps"] == 4
    with torch.inference_mode():
        device.run({stream.name for stream in device.streams if not stream.name.endswith("-scores")})
    driver.tick()
    assert not driver.ends, "its log-probabilities are not here"
    assert driver.tokens("0") == said[:2]
    driver.run()
    assert driver.tokens("0") == said[:2]
    assert driver.done("0").held == (stop,)
    assert driver.done("0").counts["tokens"] == 3
    assert driver.counter("discarded_tokens") == 1
    assert not driver.held


@pytest.mark.parametrize(("ahead", "blocks"), [(2, 12), (4, 11)])
def test_a_request_that_lost_its_blocks_goes_on_when_its_steps_are_read(ahead: int, blocks: int):
    """It is asked whether it could start while they are unread, and must be asked again."""
    device, model, tokens = QueuedDevice(), SmallText(), 14
    options = ArOptions(max_num_seqs=2, block_size=2, max_in_flight=ahead, num_blocks=blocks, max_model_len=24)
    driver = ArDriver(model, device, options)
    driver.ask_all(PROMPTS, max_tokens=tokens)
    for _ in range(50):
        for _ in range(ahead + 1):
            driver.tick()
        device.synchronize()
    assert driver.counter("preemptions") > 0
    assert driver.all_tokens(2) == [greedy(model, prompt, tokens) for prompt in PROMPTS]
    assert not driver.held


def test_a_tick_that_reads_a_token_says_that_it_moved():
    """Else the engine would take the stage for one that waits for the device, and sleep."""
    device, model = QueuedDevice(), SmallText()
    driver = ArDriver(model, device)
    driver.ask("0", PROMPTS[0], max_tokens=1)
    assert driver.tick(), "it launched a step"
    assert not driver.tick()
    device.synchronize()
    assert driver.tick(), "it read the last token, and there is nothing else to do"
    assert driver.tokens("0") == greedy(model, PROMPTS[0], 1)


class HoldAll:
    """Every token may be part of a stop string that is not complete yet."""

    def __init__(self) -> None:
        self._said = 0

    def push(self, token: int) -> StopVerdict:
        self._said += 1
        return StopVerdict(self._said, False)


def test_tokens_that_were_held_back_go_with_their_request():
    """Its record may live on in a queue; what it held back is nobody's, and must not."""
    driver = ArDriver(SmallText(payload=True, emits_tokens=True))
    driver.ask("0", PROMPTS[0], rules=HostRules(stops=HoldAll()), max_tokens=8)
    for _ in range(4):
        driver.tick()
    request = driver.worker.requests["0"]
    messages = [message for withheld in request.withheld for message in withheld.messages]
    assert len(messages) > len(request.withheld) > 1, "tokens, and hidden states of those before"
    driver.abort("0")
    driver.tick()
    assert not request.withheld
    assert all(message.free for message in messages)
    driver.release_lent()
    driver.run()
    assert not driver.held
