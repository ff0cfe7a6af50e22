"""The autoregressive stage against a reference implementation of its model: with little memory, small budgets, shared prefixes,
slow consumers."""

import functools
import gc
import weakref
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from omni.errors import ConfigError
from omni.testing.simulation.late import QueuedDevice
from omni_ar.inputs import Prompt
from omni_ar.options import ArOptions
from omni_ar.run.limits import Limits
from tests.support.ar_driver import ArDriver, plain_prompt
from tests.support.devices import DEVICES
from tests.support.small_text import SmallText, greedy
from tests.support.tiers import SLOW, few

pytestmark = pytest.mark.thorough

MODEL = SmallText(payload=True)
PROMPTS = [[(7 * index + 3 * place * place) % 61 for place in range(1 + 5 * index)] for index in range(8)]
TOKENS = 12
LITTLE = 13
"""Blocks of 4 tokens: the longest request takes 12."""


@functools.cache
def answer(index: int) -> list[int]:
    return greedy(MODEL, PROMPTS[index], TOKENS)


def options(**changes: object) -> ArOptions:
    return replace(ArOptions(max_num_seqs=4, block_size=4), **changes)


def run_all(driver: ArDriver, prefix: str = "") -> None:
    for index, prompt in enumerate(PROMPTS):
        driver.ask(f"{prefix}{index}", prompt, max_tokens=TOKENS)
    driver.run()
    for index, prompt in enumerate(PROMPTS):
        done = driver.done(f"{prefix}{index}")
        assert driver.tokens(f"{prefix}{index}") == answer(index)
        assert (done.reason, done.counts["tokens"], done.counts["prompt_tokens"]) == ("length", TOKENS, len(prompt))
    assert not driver.held


def test_the_reference_is_not_degenerate():
    outputs = [answer(index) for index in range(len(PROMPTS))]
    assert all(len(set(tokens)) > 3 for tokens in outputs)
    assert len(set(map(tuple, outputs))) == len(outputs)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "changes",
    few(
        4,
        [
            {"max_num_batched_tokens": 1},
            {"max_num_batched_tokens": 7},
            {"max_num_seqs": 3, "block_size": 1, "max_num_batched_tokens": 30, "prefix_cache": False},
            {"max_num_seqs": 8, "block_size": 16, "max_num_batched_tokens": 30},
            {"max_num_batched_tokens": 3},
        ],
        SLOW,
    ),
    ids=str,
)
def test_greedy_tokens_are_those_of_full_recomputation(changes: dict[str, object], device: str):
    driver = ArDriver(MODEL, DEVICES[device](), options(**changes))
    run_all(driver)
    assert driver.counter("prefill_tokens") == sum(map(len, PROMPTS)) - driver.counter("cached_tokens")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("cache", [False, True])
def test_too_few_blocks_for_all(cache: bool, device: str):
    driver = ArDriver(MODEL, DEVICES[device](), options(num_blocks=LITTLE, prefix_cache=cache))
    run_all(driver)
    assert driver.counter("preemptions") > 0
    assert cache == bool(driver.counter("cached_tokens") + driver.counter("cached_blocks"))


@pytest.mark.parametrize("cache", [True, False])
def test_a_prefix_is_computed_once_where_there_is_a_cache(cache: bool):
    driver = ArDriver(MODEL, options=options(prefix_cache=cache))
    run_all(driver, "first ")
    first = driver.counter("prefill_tokens")
    run_all(driver, "second ")
    cached = sum(driver.done(f"second {index}").counts["cached_tokens"] for index in range(8))
    # All but the block that the next token needs.
    assert cached == cache * sum((len(prompt) - 1) // 4 * 4 for prompt in PROMPTS)
    assert driver.counter("prefill_tokens") - first == sum(map(len, PROMPTS)) - cached
    assert cache == bool(driver.counter("cached_tokens")) == bool(driver.counter("cached_blocks"))


def test_another_salt_shares_nothing():
    driver = ArDriver(MODEL, options=options())
    for name, salt in (("a", ""), ("b", "mine"), ("c", "yours"), ("d", "mine")):
        driver.ask(name, PROMPTS[5], max_tokens=TOKENS, cache_salt=salt)
        driver.run()
    assert [driver.tokens(name) == answer(5) for name in "abcd"] == [True] * 4
    assert [driver.done(name).counts["cached_tokens"] for name in "abcd"] == [0, 0, 0, 24]


def test_the_next_turn_finds_the_last_ones_generated_tokens():
    driver = ArDriver(MODEL, options=options())
    driver.ask("first", PROMPTS[4], max_tokens=TOKENS)
    driver.run()
    said = [*PROMPTS[4], *answer(4), 3, 1, 4]
    driver.ask("second", said, max_tokens=TOKENS)
    driver.run()
    assert driver.tokens("second") == greedy(MODEL, said, TOKENS)
    # The last token of an answer is never run; of 21 + 11 tokens all are in full blocks.
    assert driver.done("second").counts["cached_tokens"] == 32


def hidden_prompt(index: int, positions: Sequence[int]) -> Prompt:
    return plain_prompt(PROMPTS[index], payload_positions=np.array(positions, np.int64))


def check_hidden(driver: ArDriver, name: str, index: int, positions: Sequence[int]) -> None:
    (rows,) = driver.hidden(name)
    torch.testing.assert_close(rows, MODEL.whole(PROMPTS[index])[list(positions)])


def test_a_prefix_without_the_hidden_states_that_are_wanted_is_a_miss():
    driver = ArDriver(MODEL, options=options())
    wanted = {"none": [], "some": [2, 9, 20], "fewer": [2, 9], "beyond": [2, 9, 24], "other": [2, 10]}
    for name, positions in wanted.items():
        driver.ask(name, hidden_prompt(5, positions), max_tokens=TOKENS)
        driver.gather_all()
        assert driver.tokens(name) == answer(5)
        if positions:
            check_hidden(driver, name, 5, positions)
    cached = [driver.done(name).counts["cached_tokens"] for name in wanted]
    # Position 10 lies in the third block, position 24 in the seventh, which is run in any case.
    assert cached == [0, 0, 24, 24, 8]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("budget", [3, 100])
def test_ungathered_hidden_states_are_moved_when_blocks_are_wanted(budget: int, device: str):
    driver = ArDriver(MODEL, DEVICES[device](), options(num_blocks=LITTLE, max_num_batched_tokens=budget))
    wanted = [sorted({0, len(prompt) // 2, len(prompt) - 1}) for prompt in PROMPTS]
    for index, positions in enumerate(wanted):
        driver.ask(str(index), hidden_prompt(index, positions), max_tokens=TOKENS)
    driver.run()
    assert driver.counter("spilled_rows") > 0
    assert driver.held["spilled"] > 0
    assert {driver.done(str(index)).reason for index in range(8)} == {"length"}, "no consumer stops the producer"
    driver.gather_all()
    for index, positions in enumerate(wanted):
        assert driver.tokens(str(index)) == answer(index)
        check_hidden(driver, str(index), index, positions)


def test_blocks_are_not_reused_before_a_gather_from_their_old_place_ends():
    device = QueuedDevice()
    driver = ArDriver(MODEL, device, options(num_blocks=LITTLE, prefix_cache=False))
    driver.ask("5", hidden_prompt(5, [0, 25]), max_tokens=TOKENS)
    driver.run()
    driver.look()
    driver.ask("7", PROMPTS[7], max_tokens=TOKENS)
    for _ in range(40):
        driver.tick()
        with torch.inference_mode():
            device.run({"ar"})
    assert driver.counter("spilled_rows") == 2
    assert driver.tokens("7") == [], "the consumer's stream still reads the blocks that it needs"
    driver.gather_all()
    assert driver.tokens("7") == answer(7)
    ((look, rows),) = driver.looks
    assert torch.equal(look, rows)
    check_hidden(driver, "5", 5, [0, 25])


def test_sampled_tokens_depend_on_neither_company_nor_preemption():
    asked = {"max_tokens": TOKENS, "temperature": 1.2, "top_k": 30, "top_p": 0.95, "repetition_penalty": 1.3}

    def by_itself(index: int, seed: int) -> list[int]:
        driver = ArDriver(MODEL)
        driver.ask("r", PROMPTS[index], asked, seed=seed)
        driver.run()
        assert driver.counter("preemptions") == 0
        return driver.tokens("r")

    alone = [by_itself(index, index) for index in range(len(PROMPTS))]
    together = ArDriver(MODEL, options=options(num_blocks=LITTLE))
    for index, prompt in enumerate(PROMPTS):
        together.ask(str(index), prompt, asked, seed=index)
        together.ask(f"greedy {index}", prompt, max_tokens=3 + index)
        together.tick()
    together.run()
    assert together.counter("preemptions") > 0
    assert together.all_tokens(len(PROMPTS)) == alone
    assert by_itself(4, seed=99) != alone[4]
    assert all(tokens != answer(index) for index, tokens in enumerate(alone))


def test_requests_are_served_by_order():
    driver = ArDriver(MODEL, options=options(max_num_seqs=1))
    orders = {0: (1, 0), 1: (1, 1), 2: (0, 2), 3: (2, 3), 4: (0, 4)}
    for index, order in orders.items():
        driver.ask(str(index), PROMPTS[index], order=order, max_tokens=TOKENS)
    driver.run()
    assert list(driver.ends) == ["2", "4", "0", "1", "3"]


@pytest.mark.parametrize("device", DEVICES)
def test_a_paused_request_gives_way_and_goes_on_where_it_was(device: str):
    driver = ArDriver(MODEL, DEVICES[device](), options(num_blocks=LITTLE))
    driver.ask("7", PROMPTS[7], max_tokens=TOKENS)
    while len(driver.tokens("7")) < 4:
        driver.tick()
        with torch.inference_mode():
            driver.device.synchronize()
    driver.pause("7")
    for index in (4, 6):
        driver.ask(str(index), PROMPTS[index], max_tokens=TOKENS)
    driver.run()
    assert driver.tokens("6") == answer(6)
    assert driver.tokens("4") == answer(4)
    assert len(driver.tokens("7")) < TOKENS
    assert driver.counter("preemptions") == 1
    driver.resume("7")
    driver.run()
    assert driver.tokens("7") == answer(7)


def test_a_stop_id_is_given_and_is_the_last():
    stops = (answer(6)[9], answer(4)[8])
    driver = ArDriver(MODEL, options=options(num_blocks=LITTLE))
    driver.ask_all(PROMPTS, max_tokens=TOKENS, stop_token_ids=stops)
    driver.run()
    assert driver.counter("preemptions") > 0
    for index, prompt in enumerate(PROMPTS):
        tokens = greedy(MODEL, prompt, TOKENS, stops=stops)
        assert driver.tokens(str(index)) == tokens
        assert driver.done(str(index)).reason == ("stop" if tokens[-1] in stops else "length")
    assert {driver.done(str(index)).reason for index in (4, 6)} == {"stop"}


def test_a_request_without_a_prompt_ends_empty():
    driver = ArDriver(MODEL)
    driver.open("r")
    driver.end("r")
    driver.run()
    assert driver.done("r").reason == "empty"


def test_a_closed_worker_holds_nothing():
    driver = ArDriver(MODEL)
    driver.ask_all(PROMPTS)
    driver.tick()
    assert driver.held
    driver.worker.close()
    driver.worker.close()
    assert not driver.held


def test_a_worker_is_freed_without_the_collector_of_cycles():
    """Its runner has the buffers and graphs of the stage, beside which a new one may not fit."""
    driver = ArDriver(MODEL)
    driver.ask_all(PROMPTS)
    driver.gather_all()
    driver.worker.close()
    worker, runner = weakref.ref(driver.worker), weakref.ref(driver.runner)
    gc.disable()
    try:
        del driver
        assert (worker(), runner()) == (None, None)
    finally:
        gc.enable()


def test_a_stage_longer_than_its_model_is_refused():
    with pytest.raises(ConfigError, match=r"text\.max_model_len: 97 is longer than the model's 96 positions; lower it"):
        Limits.of("text", ArOptions(max_model_len=97), MODEL.shape)
