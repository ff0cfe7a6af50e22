"""What is wrong with one request stays that request's; what a model raises is told with its place."""

from collections.abc import Mapping

import msgspec
import numpy as np
import pytest
import torch

from omni.errors import InputError, StageError
from omni.payload import Payload
from omni_ar.inputs import MultimodalEmbedding, Placeholder, StepInputs
from omni_ar.options import ArOptions
from tests.support.ar_driver import ArDriver, plain_prompt
from tests.support.small_text import SmallText, greedy

PROMPT = [5, 17, 3, 44, 8]


def answers_still(driver: ArDriver, model: SmallText) -> bool:
    """Whether a new request gets its tokens, and everything is free afterwards."""
    driver.ask("next", PROMPT, max_tokens=5)
    driver.run()
    return driver.tokens("next") == greedy(model, PROMPT, 5) and not driver.held


def test_a_model_that_raises_in_a_batch_of_one_fails_it():
    model = SmallText()
    driver = ArDriver(model)
    driver.ask("r", PROMPT, max_tokens=30)
    for _ in range(4):
        driver.tick()
    model.poison = 1
    driver.run()
    error = driver.error("r")
    assert isinstance(error, StageError)
    assert str(error) == "stage 'text' failed while running a step, in phase run_forward: ValueError: poisoned"
    assert driver.counter("retries") == 0
    model.poison = None
    assert answers_still(driver, model)


@pytest.mark.parametrize(
    ("prompt", "changes", "field", "problem"),
    [
        ([], {}, "prompt", "is empty"),
        ([1] * 96, {}, "prompt", "has 96 tokens, and text takes 96"),
        (PROMPT, {"columns": np.zeros((2, 5), np.int64)}, "prompt.columns", "is int64 [2, 5]"),
        (PROMPT, {"columns": np.zeros(5, np.int64)}, "prompt.columns", "is int64 [5]"),
        (PROMPT, {"columns": np.zeros((1, 5), np.int32)}, "prompt.columns", "is int32 [1, 5]"),
        (PROMPT, {"positions": np.zeros((3, 5), np.int64)}, "prompt.positions", "is int64 [3, 5]"),
        (PROMPT, {"positions": np.zeros((1, 4), np.int64)}, "prompt.positions", "is int64 [1, 4]"),
        (PROMPT, {"payload_positions": np.array([2, 5])}, "prompt.payload_positions", "reach from 2 to 5"),
        (PROMPT, {"penalized_ids": np.array([0, 61])}, "prompt.penalized_ids", "reach from 0 to 61"),
        (PROMPT, {"penalized_ids": np.array([-1, 3])}, "prompt.penalized_ids", "reach from -1 to 3"),
        (
            PROMPT,
            {"placeholders": (Placeholder(name="sound", index=1, positions=np.array([9])),)},
            "prompt.placeholders.sound[1].positions",
            "reach from 9 to 9",
        ),
    ],
)
def test_a_malformed_prompt_fails_alone(prompt: list[int], changes: Mapping[str, object], field: str, problem: str):
    model = SmallText()
    driver = ArDriver(model)
    driver.ask("good", PROMPT, max_tokens=4)
    driver.ask("bad", plain_prompt(prompt, **changes))
    driver.run()
    error = driver.error("bad")
    assert isinstance(error, InputError)
    assert (error.field, problem in error.problem) == (field, True), str(error)
    assert driver.tokens("good") == greedy(model, PROMPT, 4)
    assert not driver.held


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"stop_token_ids": (61,)}, "sampling.text.stop_token_ids: 61 is not in the vocabulary; use ids below 61"),
        (
            {"stop_token_ids": tuple(range(17))},
            "sampling.text.stop_token_ids: are 17 ids, the stage's own included; use at most 16 in all",
        ),
        ({"suppress_token_ids": (3, 99)}, "sampling.text.suppress_token_ids: 99 is not in the vocabulary"),
        ({"suppress_token_ids": tuple(range(61))}, "sampling.text.suppress_token_ids: leave nothing to say"),
    ],
)
def test_ids_outside_the_vocabulary_fail_alone(sampling: Mapping[str, object], message: str):
    driver = ArDriver(SmallText())
    driver.ask("bad", PROMPT, **sampling)
    driver.run()
    assert message in str(driver.error("bad"))
    assert not driver.held


def test_a_pool_too_small_for_the_answer_is_named_with_its_numbers():
    model = SmallText()
    driver = ArDriver(model, options=ArOptions(max_num_seqs=2, block_size=4, num_blocks=3))
    driver.ask("bad", PROMPT, max_tokens=8)
    driver.run()
    problem = "prompt and output of 13 tokens need 4 blocks, and text has 3"
    assert problem in str(driver.error("bad"))
    assert answers_still(driver, model)


def test_a_second_prompt_is_refused():
    driver = ArDriver(SmallText())
    driver.open("r")
    for _ in range(2):
        driver.feed_host("r", Payload(plain_prompt(PROMPT)))
    driver.run()
    assert "prompt: came twice" in str(driver.error("r"))
    assert not driver.held


class Odd(msgspec.Struct, frozen=True):
    """Something this stage kind does not know."""


@pytest.mark.parametrize("meta", [Odd(), plain_prompt(PROMPT), plain_prompt([])], ids=["unknown", "good", "refused"])
def test_a_lease_that_the_stage_has_no_use_for_is_released(meta: msgspec.Struct):
    driver = ArDriver(SmallText())
    driver.open("r")
    ref = driver.feed("r", Payload(meta, {"rows": torch.zeros(2, 3)}))
    driver.tick()
    assert ref.freed


def test_an_input_of_an_unknown_kind_is_named():
    driver = ArDriver(SmallText())
    driver.open("r")
    driver.feed_host("r", Payload(Odd()))
    driver.run()
    assert "a stage of kind 'ar' takes no Odd" in str(driver.error("r"))


def test_conditioning_for_a_model_that_takes_none_is_refused():
    driver = ArDriver(SmallText())
    driver.open("r")
    driver.feed_host("r", Payload(StepInputs(columns=np.zeros((2, 3), np.int64))))
    driver.run()
    assert "step_inputs.columns: is int64 [2, 3]; give int64 [0, any]" in str(driver.error("r"))


def test_steps_that_cannot_be_packed_leave_their_upload_slots():
    model = SmallText()
    driver = ArDriver(model, options=ArOptions(max_num_seqs=1, block_size=4))
    everywhere = np.arange(90)
    slots = tuple(Placeholder(name="sound", index=index, positions=everywhere) for index in range(400))
    for index in range(8):  # more than the ring has slots
        driver.open(str(index))
        for slot in slots:
            driver.feed_host(
                str(index), Payload(MultimodalEmbedding(name="sound", index=slot.index), {"rows": torch.zeros(90, 1)})
            )
        driver.feed_host(str(index), Payload(plain_prompt([1] * 90, placeholders=slots)))
        driver.run()
        assert "the upload buffer has" in str(driver.error(str(index)))
    assert answers_still(driver, model)


def test_a_late_embedding_for_a_request_that_is_gone_is_let_go():
    driver = ArDriver(SmallText())
    driver.open("r")
    driver.abort("r")
    ref = driver.feed("r", Payload(MultimodalEmbedding(name="sound", index=0), {"rows": torch.zeros(2, 3)}))
    driver.tick()
    assert ref.freed
    assert not driver.held


def test_embeddings_that_never_come_fail_the_request():
    driver = ArDriver(SmallText())
    slots = (Placeholder(name="sound", index=0, positions=np.array([1, 2])),)
    driver.ask("r", plain_prompt(PROMPT, placeholders=slots))
    driver.run()
    assert "it ended before embedding sound[0]" in str(driver.error("r"))
    assert not driver.held


def test_what_cannot_be_planned_fails_alone():
    model = SmallText()
    driver = ArDriver(model, options=ArOptions(max_num_seqs=2, block_size=2))
    driver.ask("good", PROMPT, max_tokens=5)
    driver.ask("bad", PROMPT, max_tokens=5, cache_salt="\ud800")  # cannot be hashed
    driver.ask("later", PROMPT, max_tokens=5)
    driver.run()
    assert "stage 'text' failed while planning: UnicodeEncodeError" in str(driver.error("bad"))
    for name in ("good", "later"):
        assert driver.tokens(name) == greedy(model, PROMPT, 5)
    assert not driver.held


def test_an_embedding_of_one_dimension_fails_its_request_alone():
    model = SmallText()
    driver = ArDriver(model, options=ArOptions(max_num_seqs=2, block_size=2))
    driver.open("bad")
    slot = Placeholder(name="sound", index=0, positions=np.arange(2))
    driver.feed_host("bad", Payload(plain_prompt(PROMPT, placeholders=(slot,))))
    driver.feed("bad", Payload(MultimodalEmbedding(name="sound", index=0), {"rows": torch.zeros(2)}))
    driver.run()
    assert "while taking its input: IndexError" in str(driver.error("bad"))
    assert answers_still(driver, model)
