"""A stage with a drafter whose layers are cut across simulated ranks: every rank drafts and accepts the same, and each request gets
what it gets of the whole model without drafts."""

import itertools
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import msgspec
import pytest

from omni.parallel import RankLayout
from omni_ar.options import ArOptions
from tests.stages.omni_ar.simulated_stage import Scenario, SimulatedRequest, SimulatedStage, ask_text, run, run_kind
from tests.support.ar_driver import ArDriver
from tests.support.deep_models import Deep, filled
from tests.support.tiers import SLOW, few

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("cheap_passes")]


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


ASKED = [SimulatedRequest(number, "greedy", most=26) for number in (0, 1, 2, 0)]
"""One after the other; at the last the future is known."""
DRAFTERS: Mapping[str, Mapping[str, Any]] = {
    "ngram": {"fewest": 1},
    "fabricated": {"rate": 0.4},
    "deep": {"noise": 0.5},
}


def in_turn(drafter: str, in_flight: int) -> ArOptions:
    given: dict[str, Any] = {"max_num_seqs": 2, "block_size": 4, "max_model_len": 60, "prefix_cache": False}
    return ArOptions(**given, drafter=drafter, draft_tokens=3, drafter_args=DRAFTERS[drafter], max_in_flight=in_flight)


def drafts_in(driver: ArDriver, name: str) -> dict[str, int]:
    return {count: n for count, n in driver.done(name).counts.items() if "draft" in count}


@cache
def of_one_device(drafter: str) -> list[dict[str, int]]:
    """The counts of each request, each step of which the host reads before the next."""
    driver = ArDriver(filled(Deep()), options=in_turn(drafter, 1))
    for number, ask in enumerate(ASKED):
        ask_text(driver, str(number), ask)
        driver.gather_all()
    return [drafts_in(driver, str(number)) for number in range(len(ASKED))]


@dataclass
class StageInTurn(SimulatedStage):
    """Each request comes when the one before has ended. ahead: numbers of steps in flight of a request whose step is launched."""

    ahead: set[int] = field(default_factory=set)

    def _lead(self) -> bool:
        if self._asked < len(ASKED) and len(self.driver.ends) == self._asked:
            self._ask(str(self._asked), ASKED[self._asked])
        moved = super()._lead()
        self.ahead |= {request.steps_in_flight for request in self.driver.worker.requests.values()}
        return moved


IN_TURN = [("ngram", LAYOUTS[2], 8), *itertools.product(DRAFTERS, LAYOUTS, (1, 2, 4, 8))]


@pytest.mark.parametrize(("drafter", "layout", "in_flight"), few(1, IN_TURN, SLOW))
def test_acceptance_is_that_of_one_device_by_step(drafter: str, layout: RankLayout, in_flight: int) -> None:
    """Of adaptive drafts, to the token, with any number of steps in flight."""
    expected = of_one_device(drafter)
    assert sum(each.get("drafted_tokens", 0) for each in expected) > 20
    plan = Scenario("text", layout, in_turn(drafter, in_flight), False, ((0, ASKED[0]),), {})
    stage = run_kind(StageInTurn, plan, in_flight)
    assert [drafts_in(stage.driver, str(number)) for number in range(len(ASKED))] == expected
    # With two layer ranges or more, the first is as far ahead as it may.
    assert max(stage.ahead) >= in_flight if layout.pipeline > 1 else max(stage.ahead) >= 1
