"""Stop ids within runs of accepted drafts: a request ends as without drafts, at the first of its stop ids, with every drafter."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch

from omni.payload import GeneratedTokens
from omni.sampling import SamplingParams
from omni.testing.simulation.late import LateDevice
from omni.utils.draft_counts import DraftCounts
from omni_ar.drafters import Drafter, ModelDrafter
from omni_ar.drafters.draft_model import ArDraftModel
from omni_ar.model import ArModel
from omni_ar.options import ArOptions
from tests.stages.omni_ar.small_drafts import PROMPTS
from tests.support.ar_driver import ArDriver
from tests.support.small_text import SmallText
from tests.support.tiers import chosen
from tests.support.trained_heads import KINDS, trained

pytestmark = pytest.mark.thorough

DRAFTS, MOST = 4, 20
EMITS = SmallText(vocab=11, positions=160, payload=True, emits_tokens=True)
"""As a thinker, whose consumer gets a hidden state for each token."""
DRAFTERS = ("ngram", "fabricated", "draft_model", *KINDS)
ARGS: Mapping[str, Mapping[str, object]] = {"ngram": {"fewest": 1}, "fabricated": {"rate": 0.8}}
ASKED: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"logprobs": 2},
    "drawn": {"temperature": 0.8, "top_k": 6, "seed": 11, "logprobs": 1},
    "min_tokens": {"min_tokens": 9},
    "penalty": {"repetition_penalty": 1.3, "temperature": 0.6, "seed": 4},
}


def model_of(drafter: str) -> ArModel:
    return trained(drafter).setup.model if drafter in KINDS else EMITS


def made(drafter: str) -> Drafter | None:
    """None for one that the options make."""
    if drafter in KINDS:
        return trained(drafter).drafter(DRAFTS)
    if drafter == "draft_model":
        other = SmallText(vocab=11, positions=160)
        with torch.no_grad():
            other.head.add_(torch.randn(other.head.shape, generator=torch.Generator().manual_seed(4)), alpha=0.1)
        return ModelDrafter(ArDraftModel(other, 11), DRAFTS)
    return None


def driver_of(drafter: str, drafts: int = 0, in_flight: int = 1, ends: Sequence[int] = ()) -> ArDriver:
    """drafts: 0 for none. ends: stop ids of the stage."""
    options = ArOptions(
        max_num_seqs=4,
        block_size=4,
        max_model_len=80,
        max_in_flight=in_flight,
        sampling=SamplingParams(stop_token_ids=tuple(ends)),
    )
    if not drafts:
        return ArDriver(model_of(drafter), options=options)
    name = drafter if drafter in ARGS else "ngram"
    given = {"drafter": name, "drafter_args": ARGS.get(drafter), "draft_tokens": drafts, "adaptive_drafts": False}
    options = ArOptions(**{field: getattr(options, field) for field in options.__struct_fields__} | given)
    return ArDriver(model_of(drafter), LateDevice(in_flight, check=False), options, drafter=made(drafter))


@dataclass(frozen=True)
class StoppedAnswer:
    """The outputs of a request: its messages, its end, log-probabilities by place, and hidden states by index of their token."""

    messages: tuple[GeneratedTokens, ...]
    reason: str
    scores: tuple[tuple[int, int, float], ...]
    hidden: tuple[tuple[int, tuple[float, ...]], ...]

    @classmethod
    def of(cls, driver: ArDriver, name: str) -> "StoppedAnswer":
        scores = [
            (each.first + at, int(each.ids[at, 0]), round(float(each.logprobs[at, 0]), 3))
            for each in driver.logprobs(name)
            for at in range(len(each.ids))
        ]
        rows = [(getattr(meta, "index", -1), tensor[0]) for meta, tensor in driver.rows.get(name, [])]
        hidden = [(index, tuple(round(value, 3) + 0.0 for value in row.tolist()[:4])) for index, row in rows]
        messages = tuple(meta for meta in driver.metas(name) if isinstance(meta, GeneratedTokens))
        return cls(messages, driver.done(name).reason, tuple(sorted(scores)), tuple(hidden))

    @property
    def tokens(self) -> list[int]:
        return [token for message in self.messages for token in message.ids]


def got(driver: ArDriver, prompt: Sequence[int], asked: Mapping[str, Any]) -> tuple[StoppedAnswer, DraftCounts]:
    """Of a request alone."""
    name = str(len(driver.ends))
    driver.ask(name, prompt, {"max_tokens": MOST, **asked})
    driver.gather_all()
    return StoppedAnswer.of(driver, name), DraftCounts.of(driver.done(name).counts)


@cache
def plain(drafter: str) -> ArDriver:
    return driver_of(drafter)


def places(text: Sequence[int]) -> list[int]:
    """Those where an id occurs for the first time."""
    return [at for at, token in enumerate(text) if token not in text[:at]]


def accepted(counts: DraftCounts) -> list[int]:
    """By position, without positions that had none."""
    return [each for each in counts.accepted if each]


CASES = [
    *(("fabricated", 3, asked) for asked in ASKED),
    ("ngram", 3, "greedy"),
    ("draft_model", 3, "drawn"),
]


@pytest.mark.parametrize(
    ("drafter", "in_flight", "asked"), chosen(CASES, itertools.product(DRAFTERS, (3, 1, 8), ASKED))
)
def test_a_stop_id_within_a_run_ends_the_request(drafter: str, in_flight: int, asked: str) -> None:
    """With each token, log-probability and hidden state up to it, and as many accepted drafts as with `max_tokens` there."""
    driver, sampling, happened = driver_of(drafter, DRAFTS, in_flight), ASKED[asked], Counter[str]()
    for prompt in PROMPTS[: 1 if drafter in KINDS else 2]:
        text = got(plain(drafter), prompt, sampling)[0].tokens
        for at in places(text)[-3:]:
            stops = {**sampling, "stop_token_ids": (text[places(text)[-1]], text[at])}
            wanted = got(plain(drafter), prompt, stops)[0]
            limited = {**sampling, "max_tokens": len(wanted.tokens), "min_tokens": 0, "stop_token_ids": ()}
            for _ in range(1 + (drafter == "fabricated")):  # then its future is known
                found, counts = got(driver, prompt, stops)
                assert found == wanted
                happened["stops"] += found.reason == "stop"
                happened["accepted"] += sum(counts.accepted)
                if "min_tokens" not in sampling:  # then the text without stop ids may be another
                    _, expected = got(driver, prompt, limited)
                    # Near `max_tokens` fewer drafts are verified, which were wrong.
                    assert accepted(counts) == accepted(expected), (prompt, at)
                    assert counts.steps == expected.steps
                    assert sum(counts.drafted) >= sum(expected.drafted)
    assert happened["stops"] > 2
    assert happened["accepted"] > 0


@pytest.mark.parametrize("drafter", chosen(["fabricated", "draft_model", "mtp"], DRAFTERS))
def test_ignore_eos_continues_past_the_stop_ids_of_the_stage(drafter: str) -> None:
    text = got(plain(drafter), PROMPTS[0], {})[0].tokens
    ends = [text[at] for at in places(text)[-3:]]
    driver = driver_of(drafter, DRAFTS, 3, ends)
    for _ in range(2):
        stopped, _counts = got(driver, PROMPTS[0], {})
        assert stopped.tokens == text[: text.index(ends[0]) + 1]
        assert [message.ends for message in stopped.messages].index(True) == len(stopped.messages) - 1
        endless, counts = got(driver, PROMPTS[0], {"ignore_eos": True})
        assert endless.tokens == text
        assert not any(message.ends for message in endless.messages)
        # Ids of the request's own end it in any case.
        own, _counts = got(driver, PROMPTS[0], {"ignore_eos": True, "stop_token_ids": (ends[1],)})
        assert own.tokens == text[: text.index(ends[1]) + 1]
    assert sum(counts.accepted) > 0


@pytest.mark.parametrize("drafter", chosen(["ngram", "fabricated", "eagle3"], DRAFTERS))
def test_stop_ids_of_rows_side_by_side(drafter: str) -> None:
    """Each row has its own."""
    driver, stops = driver_of(drafter, DRAFTS, 3), dict[str, tuple[int, ...]]()
    wanted: dict[str, list[int]] = {}
    for round in range(1 + (drafter == "fabricated")):
        for index, prompt in enumerate(PROMPTS[:4]):
            text = got(plain(drafter), prompt, {})[0].tokens
            at = places(text)[-1 - index % 3]
            name = f"{round} {index}"
            stops[name], wanted[name] = (text[at],), text[: at + 1]
            driver.ask(name, prompt, {"max_tokens": MOST, "stop_token_ids": stops[name]})
        driver.gather_all()
    for name, tokens in wanted.items():
        assert driver.tokens(name) == tokens, name
        assert driver.done(name).reason == "stop"
    assert driver.counter("accepted_drafts") > 0


@cache
def always_right() -> ArDriver:
    """A step gives five tokens, or the remaining ones."""
    right = ModelDrafter(ArDraftModel(SmallText(vocab=11, positions=160), 11), DRAFTS)
    given: dict[str, Any] = {"draft_tokens": DRAFTS, "adaptive_drafts": False}
    options = ArOptions(max_num_seqs=1, block_size=4, max_model_len=80, drafter="ngram", **given)
    return ArDriver(EMITS, options=options, drafter=right)


@pytest.mark.parametrize("place", range(1 + DRAFTS))
def test_each_place_of_a_stop_id_within_a_run(place: int) -> None:
    """A first, a middle, the last draft, and the token behind all of them."""
    driver, seen = always_right(), 0
    for prompt in PROMPTS:
        text = got(plain("ngram"), prompt, {"logprobs": 2})[0].tokens
        for at in places(text)[1:]:
            if (at - 1) % (1 + DRAFTS) != place:
                continue
            seen += 1
            asked = {"logprobs": 2, "stop_token_ids": (text[at],)}
            found, counts = got(driver, prompt, asked)
            assert found == got(plain("ngram"), prompt, asked)[0]
            assert found.tokens == text[: at + 1]
            assert sum(counts.accepted) == sum(counts.drafted) == DRAFTS * ((at - 1) // (1 + DRAFTS)) + place
    assert seen
