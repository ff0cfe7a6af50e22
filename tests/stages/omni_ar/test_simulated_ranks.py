"""A cut stage on simulated ranks: under mixed traffic each request gets what it gets of the whole model, no access is out of order,
and every wait and rule of the transfers is needed."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from omni.parallel import RankLayout, Ranks
from omni_ar.options import ArOptions
from omni_ar.run import pipeline
from omni_ar.run.pipeline import ReceivedTokens, TokenSender
from omni_ar.run.plan import StepPlan
from omni_ar.run.state import Resources
from omni_ar.run.transfer_slots import post_tensors
from omni_ar.run.transfers import InputTransfers, StepTransfers
from tests.stages.omni_ar.simulated_stage import Scenario, SimulatedRequest, run, run_seed
from tests.support.tiers import SLOW, few

pytestmark = pytest.mark.thorough

HAPPENS = {"aborts", "preemptions", "discarded_tokens", "evicted_blocks", "cached_tokens"}


Plan = Callable[[int, int, int | None], Scenario]


def run_seeds(seeds: Sequence[int], tensor: int = 1, plan: Plan = Scenario.of) -> Counter[str]:
    """What happened in all. Raises an ExceptionGroup of what went wrong, each with its seed."""
    totals: Counter[str] = Counter()
    wrong: list[Exception] = []
    for seed in seeds:
        try:
            stage = run_seed(seed, tensor, plan=plan)
        except Exception as error:
            wrong.append(error)
            continue
        totals += stage.counters
        totals[f"{stage.scenario.kind}, {stage.scenario.layout.pipeline} layer ranges"] += 1
        totals["as on CUDA" if stage.world.blocks else "as on the CPU"] += 1
        totals["late"] += stage.world.devices[0].latest > 5
    if wrong:
        raise ExceptionGroup(f"{len(wrong)} of {len(seeds)} seeds", wrong)
    return totals


@pytest.mark.parametrize("seed", few(1, [4, 0, 10], SLOW))
def test_requests_equal_those_of_the_whole_model(seed: int) -> None:
    run_seed(seed)


@pytest.mark.parametrize("seed", few(1, [4, 6], SLOW))
def test_with_collectives_in_every_layer_too(seed: int) -> None:
    run_seed(seed, tensor=2)


@pytest.mark.parametrize(("seed", "tensor"), few(1, [(4, 1), (0, 1), (2, 2)], SLOW))
def test_with_steps_that_vectors_of_another_stage_condition(seed: int, tensor: int) -> None:
    run_seed(seed, tensor, plan=Scenario.conditioned)


@pytest.mark.plants_faults
@pytest.mark.parametrize(("seed", "tensor"), few(2, [(0, 1), (4, 1), (2, 2)], SLOW))
def test_with_steps_that_fail(seed: int, tensor: int) -> None:
    """Requests of other steps have the results that they have alone."""
    run_seed(seed, tensor, plan=Scenario.failing)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 60, 20))
def test_with_conditioned_steps_in_60_seeds(first: int) -> None:
    totals = run_seeds(range(first, first + 20), plan=Scenario.conditioned)
    assert totals["late"] > 10
    assert totals["aborts"]
    assert totals["preemptions"]


@pytest.mark.slow
@pytest.mark.plants_faults
@pytest.mark.parametrize("first", range(0, 60, 20))
def test_with_steps_that_fail_in_60_seeds(first: int) -> None:
    totals = run_seeds(range(first, first + 20), plan=Scenario.failing)
    assert totals["late"] > 10
    assert totals["retries"] > 5
    assert totals["failed"] > 5


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_requests_are_equal_in_200_seeds(first: int) -> None:
    totals = run_seeds(range(first, first + 50))
    assert totals["late"] > 25
    assert min(totals["as on CUDA"], totals["as on the CPU"]) > 10
    rare = {event: totals[event] for event in HAPPENS if totals[event] < 5}
    assert not rare, f"{rare} in {totals}"
    assert all(totals[f"{kind}, {ranges} layer ranges"] for kind in ("text", "talker") for ranges in (2, 3, 4)), totals


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 60, 30))
def test_with_collectives_in_60_seeds(first: int) -> None:
    assert run_seeds(range(first, first + 30), tensor=2)["aborts"]


def test_a_seed_replays_exactly() -> None:
    for tensor in (1, 2):
        first, again = (run_seed(4, tensor).world.devices[0] for _ in range(2))
        assert first.trace == again.trace
        assert first.now == again.now


# Every wait left out, at one rank only.

SLOTS_FILE, PIPELINE, TRANSFERS = "omni_ar.run.transfer_slots", "omni_ar.run.pipeline", "omni_ar.run.transfers"
WAITS: dict[tuple[str, str | None], tuple[int, ...]] = {
    (f"{PIPELINE}.take_hidden", None): (0, 1),
    (f"{PIPELINE}.accept_received", None): (1, 2),
    (f"{TRANSFERS}.take_inputs", None): (1, 2),
    (f"{SLOTS_FILE}.TransferEvent.done#1", None): (0, 1, 2),
    (f"{PIPELINE}.HiddenTransfers.receive.take#1", None): (0, 1),
    (f"{PIPELINE}.ReceivedTokens._accept.accept#1", None): (1, 2),
    (f"{TRANSFERS}.InputTransfers.transfer#1", None): (1, 2),
    (f"{SLOTS_FILE}.SlotRing.fill#1", "ar"): (1, 2),
    (f"{SLOTS_FILE}.SlotRing.fill#1", "ar-receive"): (0, 1),
    (f"{SLOTS_FILE}.SlotRing.fill#1", "ar-tokens"): (1, 2),
    (f"{SLOTS_FILE}.SlotRing.drain#1", "ar"): (0, 1, 2),
    (f"{SLOTS_FILE}.SlotRing.drain#1", "ar-send"): (1, 2),
}
"""By wait, or phase that waits for an arrival, and stream: the ranks of three that have it. Rank 2 has the first layer range."""
REMOVALS = [(wait, stream, rank) for (wait, stream), ranks in WAITS.items() for rank in ranks]
RANGES = 3
SEEDS = 20
"""Within which each removal is found out."""


def raises(work: Callable[[], object]) -> bool:
    try:
        work()
    except Exception:
        return True
    return False


def found_out(seed: int, **removal: Any) -> bool:
    return raises(lambda: run_seed(seed, pipeline=RANGES, **removal))


CONDITIONING = [
    (wait, rank) for wait in (f"{TRANSFERS}.take_inputs", f"{TRANSFERS}.InputTransfers.transfer#1") for rank in (1, 2)
]
"""Waits for vectors that condition steps, with the ranks that have them."""


@pytest.mark.parametrize(("wait", "rank"), few(1, CONDITIONING))
def test_removing_the_wait_makes_steps_read_other_vectors(wait: str, rank: int) -> None:
    removal = {"plan": Scenario.conditioned, "without": wait, "without_at": rank}
    assert any(found_out(seed, **removal) for seed in range(SEEDS))


@pytest.mark.parametrize(("wait", "stream", "rank"), few(1, REMOVALS))
def test_removing_a_wait_at_one_rank_has_a_visible_effect(wait: str, stream: str | None, rank: int) -> None:
    removal = {"without": wait, "without_on": stream, "without_at": rank}
    caught = next((seed for seed in range(SEEDS) if found_out(seed, **removal)), None)
    assert caught is not None, f"{SEEDS} seeds are none the worse without {wait} at rank {rank}: is it superfluous?"
    run_seed(caught, pipeline=RANGES)


# Rules that keep the ranks in step.


def newest_first(self: ReceivedTokens, newest_input: int) -> None:
    while self._arriving and (self._arriving[0].step <= newest_input or len(self._arriving) >= self._pipeline.size):
        self._accept(self._arriving.pop())


def without_bound(self: ReceivedTokens, newest_input: int) -> None:
    while self._arriving and self._arriving[0].step <= newest_input:
        self._accept(self._arriving.popleft())


def fewer_slots(than: int, by: int) -> Callable[[Resources, int], object]:
    """Where there would be so many slots, there are fewer."""
    make = pipeline._token_slots
    return lambda stage, slots: make(stage, slots - by if slots == than else slots)


RULES: dict[str, tuple[object, str, object]] = {
    "tokens are gathered before they are sent": (TokenSender, "gathering", lambda self, rows_R: []),
    "a step waits for the tokens that it needs": (StepPlan, "newest_input", 0),
    "tokens are accepted in order": (ReceivedTokens, "begin", newest_first),
    "slots for the tokens that are on their way": (pipeline, "_token_slots", fewer_slots(RANGES + 1, by=2)),
    "slots for the tokens that others may read": (pipeline, "_token_slots", fewer_slots(RANGES, by=1)),
    "a slot for hidden states is free after its transfer": (pipeline, "send_tensors", post_tensors),
}


@pytest.mark.parametrize("rule", few(1, RULES))
def test_without_the_rule_there_is_a_visible_effect(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*RULES[rule])
    assert any(found_out(seed) for seed in range(SEEDS))


Skip = Callable[..., bool]


def at_rank(rank: int | None, ranks: Callable[[Any], Ranks], other: Skip, rule: Skip) -> Skip:
    """`other` in place of a rule at this rank, None for all. ranks: of the object that has the rule."""
    return lambda self, *step: (other if rank in (None, ranks(self).rank) else rule)(self, *step)


ALL_AND_EACH = (None, *range(RANGES))
TOKEN_SKIPS: dict[str, Skip] = {
    "steps without prompts": lambda self, step: self._tokens is not None and step.count and not step.prefill,
    "every step": lambda self, step: self._tokens is not None,
}
"""Whether a step passes tokens, decided otherwise."""
INPUT_SKIPS: dict[str, tuple[Plan, Skip]] = {
    "every step": (Scenario.of, lambda self, given, steps_n: True),
    "no embeddings": (Scenario.of, lambda self, given, steps_n: bool(steps_n)),
    "no vectors": (Scenario.conditioned, lambda self, given, steps_n: bool(given)),
}
"""Whether a step passes inputs of other stages, decided otherwise."""


@pytest.mark.parametrize(("skip", "rank"), few(1, [(skip, rank) for skip in TOKEN_SKIPS for rank in ALL_AND_EACH]))
def test_ranks_that_disagree_about_tokens_are_detected(
    skip: str, rank: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = at_rank(rank, lambda self: self._inputs._ranks, TOKEN_SKIPS[skip], StepTransfers._passes_tokens)
    with monkeypatch.context() as patch:
        patch.setattr(StepTransfers, "_passes_tokens", rule)
        caught = next(seed for seed in range(SEEDS) if found_out(seed))
    run_seed(caught, pipeline=RANGES)


@pytest.mark.parametrize(("skip", "rank"), few(1, [(skip, rank) for skip in INPUT_SKIPS for rank in ALL_AND_EACH]))
def test_ranks_that_disagree_about_inputs_are_detected(
    skip: str, rank: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, other = INPUT_SKIPS[skip]
    with monkeypatch.context() as patch:
        patch.setattr(InputTransfers, "_passes", at_rank(rank, lambda self: self._ranks, other, InputTransfers._passes))
        caught = next(seed for seed in range(SEEDS) if found_out(seed, plan=plan))
    run_seed(caught, pipeline=RANGES, plan=plan)


def unfinished(rank: int) -> Callable[[StepTransfers], None]:
    """At this rank a failed step leaves out its transfers."""
    finish = StepTransfers.finish

    def finish_elsewhere(self: StepTransfers) -> None:
        if self._inputs._ranks.rank != rank:
            finish(self)

    return finish_elsewhere


OF_FAILED_STEPS: dict[str, tuple[object, str, object]] = {
    **{f"rank {rank} passes its transfers": (StepTransfers, "finish", unfinished(rank)) for rank in range(RANGES)},
    "the device counts slots as the host does": (TokenSender, "count_again", lambda self: None),
}


@pytest.mark.plants_faults
@pytest.mark.parametrize("rule", few(1, OF_FAILED_STEPS))
def test_without_the_rule_a_failed_step_harms_others(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(*OF_FAILED_STEPS[rule])
        caught = next(seed for seed in range(SEEDS) if found_out(seed, plan=Scenario.failing))
    run_seed(caught, pipeline=RANGES, plan=Scenario.failing)


SHORT = Scenario(
    kind="text",
    layout=RankLayout(pipeline=2),
    options=ArOptions(max_num_seqs=4, block_size=4, max_in_flight=8, max_model_len=40, max_num_batched_tokens=8),
    captured=False,
    asks=(
        *((0, SimulatedRequest(number, "greedy", most=1)) for number in (5, 10, 1, 6, 11, 0)),
        (0, SimulatedRequest(15, "greedy")),
    ),
    leaves={},
)
"""Requests of one token, which no later step needs, and one of more."""


@pytest.mark.parametrize("seed", few(1, (4, 0, 1, 2, 3, 5, 6, 7), SLOW))
def test_tokens_that_no_step_needs_are_accepted_in_time(seed: int) -> None:
    """Seed 4 finds a bound that is one too large."""
    run(SHORT, seed)


@pytest.mark.mutation
def test_without_a_bound_slots_are_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReceivedTokens, "begin", without_bound)
    assert any(raises(lambda seed=seed: run(SHORT, seed)) for seed in range(SEEDS))  # type: ignore[misc]


EARLY = Scenario(
    kind="text",
    layout=RankLayout(pipeline=RANGES),
    options=ArOptions(max_num_seqs=4, block_size=4, max_in_flight=8, max_model_len=40, max_num_batched_tokens=8),
    captured=False,
    asks=(
        (0, SimulatedRequest(0, "greedy")),
        (0, SimulatedRequest(1, "greedy")),
        (20, SimulatedRequest(2, "greedy", most=16)),
    ),
    leaves={},
    fails={"compute_logits": (2,)},
    rests={0: (2, 120)},
)
"""The second step has the end of the second prompt, and fails after the last layer range. The first request rests meanwhile, and
while the first rank accepts the failed step's tokens."""
DRAFTED = msgspec.structs.replace(EARLY.options, drafter="fabricated", draft_tokens=2, drafter_args={"rate": 0.5})


def without_contents(*message: object) -> None:
    """In place of `void_tokens`."""


@pytest.mark.plants_faults
@pytest.mark.parametrize("plan", [EARLY, replace(EARLY, options=DRAFTED)], ids=["tokens alone", "with drafts"])
def test_tokens_of_a_failed_step_change_no_row(plan: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(plan, 0).counters["failed"] == 1
    monkeypatch.setattr(pipeline, "void_tokens", without_contents)
    assert any(raises(lambda seed=seed: run(plan, seed)) for seed in range(SEEDS))  # type: ignore[misc]
