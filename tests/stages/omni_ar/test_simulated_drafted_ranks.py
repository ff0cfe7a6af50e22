"""A stage with a drafter whose layers are cut across simulated ranks: every rank drafts and accepts the same, and each request gets
what it gets of the whole model without drafts."""

import random
from collections import Counter
from dataclasses import replace

import msgspec
import pytest

from omni.parallel import RankLayout
from tests.support.simulated_stage import Scenario, run
from tests.support.tiers import SLOW, few

pytestmark = pytest.mark.thorough


def drafted(seed: int) -> Scenario:
    """All ask twice: the second time their future is known."""
    plain, draw = Scenario.of(seed, tensor=2), random.Random(seed)
    drafter = draw.choice(("ngram", "fabricated"))
    options = msgspec.structs.replace(
        plain.options,
        drafter=drafter,
        draft_tokens=draw.choice((1, 3, 5)),
        drafter_args={"fewest": 1} if drafter == "ngram" else {"rate": 0.8},
        adaptive_drafts=draw.random() < 0.5,
    )
    asks = (*plain.asks, *((at + 300, ask) for at, ask in plain.asks))
    return replace(plain, layout=RankLayout(tensor=2), options=options, asks=asks)


SEEDS = [seed for seed in range(60) if Scenario.of(seed, tensor=2).kind == "text"]


@pytest.mark.parametrize("seed", few(3, SEEDS, SLOW))
def test_each_request_gets_what_it_gets_of_the_whole_model(seed: int) -> None:
    run(drafted(seed), seed)


def test_drafts_are_accepted() -> None:
    totals: Counter[str] = sum((run(drafted(seed), seed).counters for seed in SEEDS[3:6]), Counter())
    assert totals["accepted_drafts"] > 10
