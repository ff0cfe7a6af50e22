"""The autoregressive stage against a model computed the long way."""

import random

import numpy as np
import pytest
import torch

from omni.errors import ConfigError
from omni.payload import PageSlice
from omni_ar.inputs import PromptHidden
from omni_ar.options import ArOptions
from omni_ar.run.limits import Limits
from tests.support.ar_driver import ArDriver, plain_prompt
from tests.support.devices import QueuedDevice
from tests.support.small_text import SmallText, greedy
from tests.support.tiers import SLOW, few

MODEL = SmallText()
PROMPTS = [[(7 * index + 3 * place * place) % 61 for place in range(1 + 5 * index)] for index in range(8)]


def join_one_by_one(driver: ArDriver, **sampling) -> None:
    """A new request every other tick."""
    for index, prompt in enumerate(PROMPTS):
        driver.ask(str(index), prompt, sampling)
        driver.tick()
        with torch.inference_mode():
            driver.device.synchronize()
        driver.tick()
    driver.run()


def test_the_reference_is_not_degenerate():
    outputs = [greedy(MODEL, prompt, 12) for prompt in PROMPTS]
    assert all(len(set(tokens)) > 3 for tokens in outputs)
    assert len({tuple(tokens) for tokens in outputs}) == len(outputs)


@pytest.mark.parametrize("queued", [False, True])
@pytest.mark.parametrize("options", [(4, 4), (3, 1), (8, 16)])
def test_greedy_tokens_are_those_of_full_recomputation(options: tuple[int, int], queued: bool):
    rows, size = options
    device = QueuedDevice() if queued else None
    driver = ArDriver(MODEL, device, ArOptions(max_num_seqs=rows, block_size=size, max_num_batched_tokens=30))
    join_one_by_one(driver, max_tokens=12)
    for index, prompt in enumerate(PROMPTS):
        assert driver.tokens(str(index)) == greedy(MODEL, prompt, 12)
        assert driver.done(str(index)).reason == "length"
        assert driver.done(str(index)).counts == {"tokens": 12, "prompt_tokens": len(prompt), "cached_tokens": 0}
    assert not driver.held


def test_a_stop_id_is_given_and_is_the_last():
    stops = (greedy(MODEL, PROMPTS[3], 12)[5], greedy(MODEL, PROMPTS[6], 12)[2])
    driver = ArDriver(MODEL)
    join_one_by_one(driver, max_tokens=12, stop_token_ids=stops)
    for index, prompt in enumerate(PROMPTS):
        tokens = greedy(MODEL, prompt, 12, stops=stops)
        assert driver.tokens(str(index)) == tokens
        assert driver.done(str(index)).reason == ("stop" if tokens[-1] in stops else "length")
    assert {driver.done(str(index)).reason for index in (3, 6)} == {"stop"}


def test_a_seeded_request_draws_the_same_tokens_in_any_company():
    asked = {"max_tokens": 12, "temperature": 1.3, "top_k": 40, "top_p": 0.95}

    def by_itself(index: int, seed: int) -> list[int]:
        driver = ArDriver(MODEL)
        driver.ask("r", PROMPTS[index], asked, seed=seed)
        driver.run()
        return driver.tokens("r")

    alone = [by_itself(index, index) for index in range(len(PROMPTS))]
    together = ArDriver(MODEL, options=ArOptions(max_num_seqs=5, block_size=2))
    for index, prompt in enumerate(PROMPTS):
        together.ask(str(index), prompt, asked, seed=index)
        together.ask(f"greedy {index}", prompt, max_tokens=3 + index)
        together.tick()
    together.run()
    assert together.all_tokens(len(PROMPTS)) == alone
    assert by_itself(4, seed=99) != alone[4]
    assert all(tokens != greedy(MODEL, prompt, 12) for tokens, prompt in zip(alone, PROMPTS, strict=True))


@pytest.mark.parametrize("seed", few(6, range(12), SLOW))
def test_aborts_at_random_ticks_leave_nothing_and_change_no_other_s_tokens(seed: int):
    chance = random.Random(seed)
    device = QueuedDevice()
    driver = ArDriver(MODEL, device, ArOptions(max_num_seqs=3, block_size=2, num_blocks=40, max_num_batched_tokens=25))
    waiting, given = list(range(8)), dict[int, list[int]]()
    for _ in range(60):
        if waiting and chance.random() < 0.4:
            index = waiting.pop(0)
            driver.ask(str(index), PROMPTS[index], max_tokens=6)
        if chance.random() < 0.3:
            index = chance.randrange(8)
            if index not in waiting and str(index) not in driver.ends:
                given.setdefault(index, driver.tokens(str(index)))
                driver.abort(str(index))
        driver.tick()
        with torch.inference_mode():
            device.run(operations=chance.randrange(10))
    driver.run()
    assert given, "the seed aborts nothing"
    for index in set(range(8)) - given.keys() - set(waiting):
        assert driver.tokens(str(index)) == greedy(MODEL, PROMPTS[index], 6)
    for index, tokens in given.items():
        assert tokens == greedy(MODEL, PROMPTS[index], 6)[: len(tokens)]
        assert driver.tokens(str(index)) == tokens, "nothing comes after an abort"
        assert str(index) not in driver.ends


def test_a_request_without_a_prompt_ends_empty():
    driver = ArDriver(MODEL)
    driver.open("r")
    driver.end("r")
    driver.run()
    assert driver.done("r").reason == "empty"


def test_hidden_states_for_a_consumer_stay_until_it_has_gathered_them():
    model = SmallText(payload=True)
    driver = ArDriver(model, options=ArOptions(max_num_seqs=1, block_size=4))
    wanted = {3: [1, 2, 15], 1: [0], 2: []}
    for index, positions in wanted.items():
        prompt = plain_prompt(PROMPTS[index], payload_positions=np.array(positions, np.int64))
        driver.ask(str(index), prompt, max_tokens=6)
    driver.run()
    assert driver.held == {"blocks": 9}, "16 and 6 tokens, with 6 more each: 6 and 3 blocks of 4"
    for index, positions in wanted.items():
        assert driver.tokens(str(index)) == greedy(model, PROMPTS[index], 6)
        lent = [p.payload.tensors for p in driver.produced[str(index)] if isinstance(p.payload.meta, PromptHidden)]
        assert len(lent) == bool(positions)
        for tensors in lent:
            source = tensors["hidden"]
            assert isinstance(source, PageSlice)
            rows = source.rows(torch.from_numpy(source.slots))
            torch.testing.assert_close(rows, model.whole(PROMPTS[index])[positions])
    driver.release_lent()
    driver.run()


def test_a_closed_worker_holds_nothing():
    driver = ArDriver(MODEL)
    driver.ask_all(PROMPTS)
    driver.tick()
    assert driver.held
    driver.worker.close()
    driver.worker.close()
    assert not driver.held


def test_a_stage_longer_than_its_model_is_refused():
    with pytest.raises(ConfigError, match=r"text\.max_model_len: 97 is longer than the model's 96 positions; lower it"):
        Limits.of("text", ArOptions(max_model_len=97), MODEL.shape)
