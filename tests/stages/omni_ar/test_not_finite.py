"""Logits that are not numbers: found in the values that the host reads anyway, or at every step if a stage checks them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from omni import SamplingParams
from omni.errors import InputError, StageError
from omni.hookspecs import hookimpl
from omni.plugin import LogitsProcessorEntry
from omni.testing import engine_for
from omni_ar.options import ArOptions
from omni_ar.processors import LogitsProcessor
from omni_text.tiny import write_tiny
from tests.support.ar_driver import ArDriver
from tests.support.plugins import plugins_of
from tests.support.small_text import SmallText, greedy

PROMPT, OTHER, TOKENS = [5, 17, 3, 44, 8], [9, 2, 31], 6
NAN, INF = float("nan"), float("inf")


class Spoilt(SmallText):
    """Writes `value` over the logits of id 0, or of all ids, in rows whose best id is `at`."""

    def __init__(self, at: int, value: float, *, all_ids: bool = False) -> None:
        super().__init__()
        self._at, self._value, self._all = at, value, all_ids

    def logits(self, hidden_RD: Tensor) -> Tensor:
        logits_RV = super().logits(hidden_RD)
        spoilt_R1 = (logits_RV.argmax(-1) == self._at)[:, None]
        spoilt_RV = spoilt_R1 if self._all else spoilt_R1 & (torch.arange(logits_RV.shape[1]) == 0)
        return torch.where(spoilt_RV, self._value, logits_RV)


ANSWERS = {name: greedy(SmallText(), prompt, TOKENS) for name, prompt in (("bad", PROMPT), ("good", OTHER))}
AT = next(token for token in ANSWERS["bad"][2:] if token not in (*ANSWERS["good"], *ANSWERS["bad"][:2], 0))
"""The token before which the logits of one request are spoilt, and never those of the other."""


def run(model: Spoilt, *, captured: bool = False, check: bool = False, **sampling: Any) -> ArDriver:
    options = ArOptions(max_num_seqs=4, block_size=4, check_logits=check)
    driver = ArDriver(model, options=options, captured=captured)
    driver.ask("bad", PROMPT, max_tokens=TOKENS, **sampling)
    driver.ask("good", OTHER, max_tokens=TOKENS)
    driver.run()
    assert driver.tokens("good") == ANSWERS["good"]
    return driver


def assert_blamed(error: BaseException, doing: str) -> None:
    assert isinstance(error, StageError)
    assert str(error).startswith(
        f"stage 'text' failed while {doing}: Spoilt.logits gave NaN or infinity: see the model"
    )
    assert f"({__file__}:" in str(error)


@pytest.mark.parametrize("captured", [False, True], ids=["uncaptured", "captured"])
@pytest.mark.parametrize("value", [NAN, INF])
def test_a_stage_that_checks_its_logits_fails_the_request(value: float, captured: bool) -> None:
    assert_blamed(run(Spoilt(AT, value), captured=captured, check=True).error("bad"), "sampling")


def test_minus_infinity_excludes_an_id_and_is_no_fault() -> None:
    assert run(Spoilt(AT, -INF), check=True).tokens("bad") == ANSWERS["bad"]


def test_without_the_check_a_nan_is_an_id_that_is_not_drawn() -> None:
    assert run(Spoilt(AT, NAN)).tokens("bad") == ANSWERS["bad"]


def test_log_probabilities_that_are_nan_fail_their_request() -> None:
    assert_blamed(run(Spoilt(AT, NAN), logprobs=1).error("bad"), "reading its scores")


def test_scores_of_a_prompt_that_are_nan_fail_their_request() -> None:
    best = greedy(SmallText(), PROMPT[:2], 1)[0]
    assert_blamed(run(Spoilt(best, NAN), prompt_logprobs=1).error("bad"), "reading its scores")


def test_no_number_at_all_is_the_model_s_fault() -> None:
    assert_blamed(run(Spoilt(AT, NAN, all_ids=True)).error("bad"), "sampling")


def test_no_number_where_parameters_exclude_ids_may_be_either_s_fault() -> None:
    error = run(Spoilt(AT, NAN, all_ids=True), logit_bias={1: -1.0}).error("bad")
    assert isinstance(error, InputError)
    assert "(or logits of the model were no numbers)" in str(error)


class Numberless(LogitsProcessor):
    width = 0

    def pack(self, args, vocab_size):
        return []

    def apply(self, logits_RV, rows):
        return logits_RV * NAN


@hookimpl
def omni_logits_processors():
    return [LogitsProcessorEntry(name="numberless", processor=f"{__name__}:Numberless")]


def test_no_number_after_a_processor_may_be_its_fault(tmp_path: Path) -> None:
    write_tiny(tmp_path / "model", seed=1)
    sampling = SamplingParams(max_tokens=2, processors={"numberless": {}})
    plugins = plugins_of("ar", "local", "text", mine=__name__)
    problem = "logits of the model or processor 'numberless' were no numbers"
    with engine_for(tmp_path / "model", plugins=plugins) as engine, pytest.raises(InputError, match=problem):
        engine.answer("hello", sampling)
