"""A stage with a drafter whose layers are cut across simulated ranks: every rank drafts and accepts the same, and each request gets
what it gets of the whole model without drafts."""

import random
from collections import Counter
from dataclasses import replace

import msgspec
import pytest

from omni.parallel import RankLayout
from tests.stages.omni_ar.simulated_stage import Scenario, run
from tests.support.tiers import SLOW, few

pytestmark = pytest.mark.thorough


def drafted(seed: int, layout: RankLayout) -> Scenario:
    """All ask twice: the second time their future is known."""
    plain, draw = Scenario.of(seed, layout.tensor, layout.pipeline), random.Random(seed)
    drafter = draw.choice(("ngram", "fabricated", "deep", "deep"))
    args = {"ngram": {"fewest": 1}, "fabricated": {"rate": 0.8}, "deep": {"noise": 0.1}}
    options = msgspec.structs.replace(
        plain.options,
        drafter=drafter,
        draft_tokens=draw.choice((1, 3, 8)),
        drafter_args=args[drafter],
        adaptive_drafts=draw.random() < 0.5,
    )
    asks = (*plain.asks, *((at + 300, ask) for at, ask in plain.asks))
    return replace(plain, options=options, asks=asks)


LAYOUTS = (RankLayout(2), RankLayout(pipeline=2), RankLayout(pipeline=3), RankLayout(2, 2))
SEEDS = [seed for seed in range(120) if Scenario.of(seed, 2, 1).kind == "text"]


@pytest.mark.parametrize(
    ("layout", "seed"), few(1, [(LAYOUTS[at % len(LAYOUTS)], seed) for at, seed in enumerate(SEEDS)], SLOW)
)
def test_requests_equal_those_of_the_whole_model(layout: RankLayout, seed: int) -> None:
    run(drafted(seed, layout), seed)


@pytest.mark.parametrize("layout", few(0, (LAYOUTS[1], LAYOUTS[0]), SLOW))
def test_drafts_that_are_never_accepted_cease_at_every_rank(layout: RankLayout) -> None:
    """So every rank must have each row's rate: otherwise some would still run positions for drafts."""
    totals = Counter[str]()
    for seed in SEEDS[3:5]:
        plan = drafted(seed, layout)
        wrong = {"drafter": "fabricated", "draft_tokens": 2, "drafter_args": {"rate": 0.0}, "adaptive_drafts": True}
        asks = tuple((at, replace(ask, most=18)) for at, ask in plan.asks)
        options = msgspec.structs.replace(plan.options, **wrong)
        totals += run(replace(plan, options=options, asks=asks), seed).counters
    assert 0 < totals["drafted_tokens"] < totals["decode_tokens"], "2 for each"
