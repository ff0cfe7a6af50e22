"""A stage with a drafter: its requests have their results without drafts, in fewer steps, and the host corrects its bounds late."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from omni.sampling import HostRules
from omni.testing import SimulatedDevice
from omni.testing.simulation.late import LateDevice
from omni_ar.drafters import DraftRequest
from omni_ar.drafters.fabricated import FabricatedDrafter
from omni_ar.kernels.sampling.state import SamplingState
from omni_ar.kernels.step import draft_reference
from omni_ar.kernels.step.handoff import NUM_TOKENS
from omni_ar.kernels.step.state import RowState, StepBuffers
from omni_ar.run import forward, source
from omni_ar.run.allocator import Allocator
from omni_ar.run.gain_history import LAG
from omni_ar.run.plan import NewBlock, StepPlan
from omni_ar.run.request import ArRequest
from omni_ar.run.step import StepContext
from omni_ar.sampling import sampler
from omni_ar.sampling.drafted import position_state
from tests.stages.omni_ar.drafted_stage import Scenario, run, run_seed
from tests.stages.omni_ar.small_drafts import ASKED, MODEL, MOST, PROMPTS, SEEDED, answers, draft_setup, driver_of
from tests.support.ar_driver import ArDriver
from tests.support.small_text import NothingTwice, TwoInARow
from tests.support.tiers import SLOW, chosen, few

pytestmark = pytest.mark.thorough

DRAFTERS = ("ngram", "fabricated")


def known(drafter: str) -> dict[str, Any]:
    return {"drafter_args": {"fewest": 1} if drafter == "ngram" else {"rate": 0.8}}


CASES = [(drafter, drafts, drafts % 2 != way) for way in (0, 1) for drafter in DRAFTERS for drafts in range(1, 9)]


@pytest.mark.parametrize(("drafter", "drafts", "seeded"), chosen((CASES[at] for at in (2, 7, 8, 11)), CASES))
def test_tokens_are_those_of_plain_decoding(drafter: str, drafts: int, seeded: bool):
    sampling = SEEDED if seeded else {}
    plain = answers(driver_of(), **sampling)
    in_flight, adaptive = 1 + (3 * drafts) % 8, drafts % 2 > 0
    device = LateDevice(drafts, check=drafts == 3)
    given = {"draft_tokens": drafts, "max_in_flight": in_flight, "adaptive_drafts": adaptive, **known(drafter)}
    driver = driver_of(drafter, device, captured=drafts % 3 > 0, **given)
    for _ in range(2):  # the second time their future is known
        assert answers(driver, **sampling) == plain
    # A text that is drawn at random repeats little.
    assert driver.counter("accepted_drafts") > (3 if drafter == "ngram" and sampling else 10)
    device.assert_no_races()


@pytest.mark.parametrize("seed", few(1, range(40), SLOW))
def test_requests_with_drafts_equal_those_without(seed: int):
    run_seed(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(40, 340, 50))
def test_drafts_change_no_request_in_300_seeds(first: int):
    totals: Counter[str] = sum((run_seed(seed) for seed in range(first, first + 50)), Counter())
    happens = ("aborts", "preemptions", "discarded_tokens", "evicted_blocks", "cached_tokens", "accepted_drafts_5")
    rare = {event: totals[event] for event in happens if totals[event] < 5}
    assert not rare, f"{rare} in {totals}"


# Necessary parts, left out in turn.


def without_blocks_for_drafts(patch: pytest.MonkeyPatch) -> None:
    real = Allocator.extend

    def extend(self: Allocator, request: ArRequest, victims: Sequence[ArRequest]) -> tuple[NewBlock, ...] | None:
        self._drafts = 0
        return real(self, request, victims)

    patch.setattr(Allocator, "extend", extend)


def attending_to_later_drafts(patch: pytest.MonkeyPatch) -> None:
    def prepare(state: RowState, rows_R: Any, positions: int, size: int, out: StepBuffers, blocks: int) -> None:
        draft_reference.prepare_drafts(state, rows_R, positions, size, out, blocks)
        lengths_RJ = out.lengths_N[: rows_R.shape[0] * positions].view(-1, positions)
        lengths_RJ.copy_(torch.where(lengths_RJ > 0, lengths_RJ.amax(1, keepdim=True), 0))

    patch.setattr(forward, "prepare_drafts", prepare)


def without_history_of_drafts(patch: pytest.MonkeyPatch) -> None:
    def of_rows(state: SamplingState, rows_R: Any, drafts_RK: Any, needs: int) -> SamplingState:
        return position_state(state, rows_R, drafts_RK, 0)

    patch.setattr(sampler, "position_state", of_rows)


def accepting_whatever_is_offered(patch: pytest.MonkeyPatch) -> None:
    def accept(state: RowState, rows_R: Any, sampled_RJ: Any, out_RW: Any) -> None:
        drafts = draft_reference.drafts_of(state)
        places = sampled_RJ.shape[1] - 1
        drafts.drafts[rows_R, :places] = sampled_RJ[:, :places]
        draft_reference.accept_drafts(state, rows_R, sampled_RJ, out_RW)

    patch.setattr(source, "accept_drafts", accept)


def counting_rejected_drafts(patch: pytest.MonkeyPatch) -> None:
    def record(state: RowState, rows_R: Any, accepted_RW: Any, positions: int, advance_R: Any, flags: Any) -> None:
        draft_reference.record_drafts(state, rows_R, accepted_RW, positions, advance_R, flags)
        state.columns.length.index_add_(
            0, rows_R, (accepted_RW[:, NUM_TOKENS] > 0) * (positions - accepted_RW[:, NUM_TOKENS])
        )

    patch.setattr(source, "record_drafts", record)


def drawing_with_the_noise_of_the_first_position(patch: pytest.MonkeyPatch) -> None:
    real = sampler.sample

    def sample(logits_RV: Any, state: Any, rows_R: Any, position_R: Any, *others: Any) -> Any:
        return real(logits_RV, state, rows_R, position_R - position_R % 3, *others)

    patch.setattr(sampler, "sample", sample)


LEFT_OUT: list[tuple[Callable[[pytest.MonkeyPatch], None], Sequence[int]]] = [
    (without_blocks_for_drafts, range(12)),
    (attending_to_later_drafts, range(12)),
    (without_history_of_drafts, range(24)),
    (accepting_whatever_is_offered, range(12)),
    (counting_rejected_drafts, range(12)),
    (drawing_with_the_noise_of_the_first_position, range(12)),
]
"""With seeds, one of which detects it."""


@pytest.mark.mutation
@pytest.mark.parametrize(("leave_out", "seeds"), LEFT_OUT)
def test_a_part_that_is_missing_is_detected(
    leave_out: Callable[[pytest.MonkeyPatch], None], seeds: Sequence[int], monkeypatch: pytest.MonkeyPatch
):
    leave_out(monkeypatch)

    def harmed(seed: int) -> bool:
        try:
            run(Scenario.of(seed), SimulatedDevice(seed))
        except Exception:
            return True
        return False

    assert any(map(harmed, seeds))


# The ends of a request within a run of accepted tokens.


def test_max_tokens_within_a_run():
    driver = driver_of("fabricated", draft_tokens=5, max_in_flight=3)
    whole = answers(driver, PROMPTS[:1])[0]
    for most in range(1, 12):
        for _ in range(2):
            driver.ask(f"{most}-{_}", PROMPTS[0], max_tokens=most)
            driver.run()
            assert driver.tokens(f"{most}-{_}") == whole[:most]
            assert driver.done(f"{most}-{_}").reason == "length"
    assert driver.counter("accepted_drafts") > 20


def test_stop_ids_within_a_run():
    driver = driver_of("fabricated", draft_tokens=7, max_in_flight=2)
    sampling = {"temperature": 1.5, "seed": 5}
    plain = answers(driver_of(), [PROMPTS[1]], **sampling)[0]
    stop = next(token for at, token in enumerate(plain) if at > 9 and token not in plain[:at])
    for _ in range(2):
        name = f"stops-{_}"
        driver.ask(name, PROMPTS[1], {**sampling, "max_tokens": MOST, "stop_token_ids": (stop,)})
        driver.run()
        assert driver.tokens(name) == plain[: plain.index(stop) + 1]
        assert driver.done(name).reason == "stop"
    assert driver.counter("accepted_drafts") > 5
    assert driver.done("stops-1").counts["accepted_drafts"] == driver.counter("accepted_drafts")


@pytest.mark.parametrize("in_flight", [1, 4])
def test_stop_strings_and_their_log_probabilities_within_a_run(in_flight: int):
    even = frozenset(range(0, 11, 2))
    sampling = {"temperature": 1.5, "seed": 9, "max_tokens": MOST, "logprobs": 2}

    def ask(driver: ArDriver, name: str) -> tuple[list[int], list[int], str]:
        driver.ask(name, PROMPTS[2], sampling, rules=HostRules(stops=TwoInARow(even)))
        driver.run()
        scored = [int(each.ids[at, 0]) for each in driver.logprobs(name) for at in range(len(each.ids))]
        return driver.tokens(name), scored, driver.done(name).reason

    plain = ask(driver_of(), "plain")
    driver = driver_of("fabricated", draft_tokens=8, max_in_flight=in_flight, adaptive_drafts=False)
    assert ask(driver, "first") == ask(driver, "again") == plain
    assert driver.counter("accepted_drafts") > 2
    assert plain[1][: len(plain[0])] == plain[0]


def test_log_probabilities_of_rows_side_by_side():
    """Each is of a position among those of all rows."""

    def ask(driver: ArDriver, name: str) -> list[list[list[int]]]:
        names = [f"{name} {place}" for place in range(3)]
        for one, prompt in zip(names, PROMPTS, strict=False):
            driver.ask(one, prompt, {**SEEDED, "logprobs": 2}, max_tokens=20)
        driver.run()
        return [[ids for each in driver.logprobs(one) for ids in each.ids.tolist()] for one in names]

    driver = driver_of("fabricated", draft_tokens=4, max_in_flight=2, adaptive_drafts=False)
    assert ask(driver, "first") == ask(driver, "again") == ask(driver_of(), "plain")
    assert driver.counter("accepted_drafts") > 20


def test_a_row_with_a_host_processor_has_no_drafts_and_others_do():
    def ask(driver: ArDriver, suffix: str) -> list[list[int]]:
        rules = HostRules(host_processors=(NothingTwice(11),))
        driver.ask(f"ruled{suffix}", PROMPTS[0], max_tokens=MOST, rules=rules)
        return [*answers(driver, PROMPTS[2:3], max_tokens=MOST), driver.tokens(f"ruled{suffix}")]

    plain = ask(driver_of(device=LateDevice(1)), "")
    driver = driver_of("fabricated", LateDevice(2), draft_tokens=4)
    assert ask(driver, " once") == ask(driver, " again") == plain
    assert "drafted_tokens" not in driver.done("ruled again").counts
    assert driver.counter("accepted_drafts") > 20


# How many drafts are verified.


@pytest.mark.parametrize(
    ("drafter", "asked", "adaptive"),
    chosen(
        [("fabricated", "penalties", False), ("ngram", "greedy", True)],
        ((drafter, asked, adaptive) for drafter in DRAFTERS for asked in ASKED for adaptive in (False, True)),
    ),
)
def test_acceptance_does_not_depend_on_the_steps_in_flight(drafter: str, asked: str, adaptive: bool):
    """Of a request that is alone: beside others, steps with their prompts have no drafts. Its tokens and counts are those of one
    step at a time. Adaptive drafts that are fabricated are wrong for so long that they cease, and then right."""
    counts = []
    for in_flight in (1, 3, 8):
        options = {"draft_tokens": 3, "adaptive_drafts": adaptive, **known(drafter)}
        made = PartlyWrongDrafter(30) if adaptive and drafter == "fabricated" else None
        driver = driver_of(drafter, LateDevice(in_flight, check=False), made=made, max_in_flight=in_flight, **options)
        prompts = PROMPTS[:3] * 2  # then their future is known
        said = [answers(driver, [prompt], **ASKED[asked], max_tokens=60) for prompt in prompts]
        counts.append((said, {name: n for name, n in driver.worker.counters().items() if "draft" in name}))
    assert all(each == counts[0] for each in counts)
    assert counts[0][1]["drafted_tokens"] >= 10
    assert counts[0][1]["accepted_drafts"] >= (10 if drafter == "fabricated" else 1) or adaptive


@pytest.mark.parametrize(
    ("drafter", "asked", "adaptive"),
    chosen(
        [("fabricated", "drawn", True), ("ngram", "greedy", False), ("ngram", "bias and stop", True)],
        ((drafter, asked, adaptive) for drafter in DRAFTERS for asked in ASKED for adaptive in (False, True)),
    ),
)
def test_acceptance_of_a_batch_does_not_depend_on_the_steps_in_flight(drafter: str, asked: str, adaptive: bool):
    """Of requests that start together and end one after the other, or soon. With `adaptive_drafts` the sum over the rows decides,
    of which some drafts are wrong for long."""
    counts, kinds = [], set()
    for in_flight in (1, 3, 8):
        options = {"draft_tokens": 3, "adaptive_drafts": adaptive, **known(drafter)}
        made = PartlyWrongDrafter(20, every=2) if adaptive and drafter == "fabricated" else None
        driver = driver_of(drafter, LateDevice(in_flight, check=False), made=made, max_in_flight=in_flight, **options)
        plans = plans_seen(driver)
        ends = ((70, 24, 60, 33), (70, 24, 60, 33), (50, 2, 3, 6), (1, 40, 5, 4))
        said = [answers(driver, PROMPTS[:4], **ASKED[asked], max_tokens=most) for most in ends]
        counts.append((said, {name: n for name, n in driver.worker.counters().items() if "draft" in name}))
        kinds |= {plan.drafts > 0 for plan in plans if not plan.chunks}
    assert all(each == counts[0] for each in counts)
    assert counts[0][1]["drafted_tokens"] >= 20
    assert made is None or kinds == {False, True}


class PartlyWrongDrafter(FabricatedDrafter):
    """Each request's future, with errors at the first `wrong` places."""

    def __init__(self, wrong: int, drafts: int = 3, every: int = 1) -> None:
        """every: only every so many requests have errors."""
        super().__init__({}, draft_setup(MODEL, drafts))
        self._wrong, self._every, self._number = wrong, every, 0

    def predicted_tokens(self, request: DraftRequest, outputs: Sequence[int]) -> Sequence[int]:
        predicted = super().predicted_tokens(request, outputs)
        self._number += 1
        if self._number % self._every:
            return predicted
        return [(token + 1) % 11 if at < self._wrong else token for at, token in enumerate(predicted, len(outputs))]


def test_drafts_that_are_never_accepted_cease():
    """And so do the steps that would verify them."""
    driver = driver_of("fabricated", made=PartlyWrongDrafter(1000), draft_tokens=3)
    answers(driver, PROMPTS[:1], max_tokens=100)
    plans = plans_of(driver, PROMPTS[0], 100)
    assert driver.counter("accepted_drafts") == 0
    assert 3 < driver.counter("drafted_tokens") < 32
    assert sum(plan.drafts > 0 for plan in plans[:16]) > 3
    # Seven drafts lower the rate, and the last report that drafts are worth it counts for LAG + WINDOW - 1 further steps.
    assert not any(plan.drafts for plan in plans[24:])


def test_steps_verify_no_drafts_of_a_drafter_that_finds_nothing():
    driver = driver_of("ngram", draft_tokens=3, drafter_args={"fewest": 8, "most": 8})
    plans = plans_of(driver, [*range(9)], LAG + 7)
    assert driver.counter("drafted_tokens") == 0
    assert [plan.drafts > 0 for plan in plans] == [False] + [True] * LAG + [False] * 6


def plans_of(driver: ArDriver, prompt: Sequence[int], most: int) -> list[StepPlan]:
    """The plans of a request's steps."""
    plans = plans_seen(driver)
    answers(driver, [prompt], max_tokens=most)
    return [*plans]


def plans_seen(driver: ArDriver) -> list[StepPlan]:
    """The plans of all further steps."""
    plans: list[StepPlan] = []
    real = driver.runner.execute_model

    def execute_model(plan: StepPlan) -> StepContext:
        plans.append(plan)
        return real(plan)

    driver.runner.execute_model = execute_model  # type: ignore[method-assign]
    return plans


def test_drafts_that_become_right_are_verified_again():
    driver = driver_of("fabricated", made=PartlyWrongDrafter(40), draft_tokens=3, max_in_flight=1)
    for _ in range(2):
        answers(driver, PROMPTS[:1], max_tokens=100)
    assert driver.counter("accepted_drafts") > 30
    plans = plans_of(driver, PROMPTS[0], 100)
    assert not any(plan.drafts for plan in plans[24:40])
    assert all(plan.drafts for plan in plans[-8:])


@pytest.mark.parametrize("in_flight", [1, 2, 8])
def test_blocks_are_held_for_acceptable_drafts_and_no_more(in_flight: int):
    drafts, size = 8, 4
    device = LateDevice(3, check=False)
    options: dict[str, Any] = {
        "draft_tokens": drafts,
        "max_in_flight": in_flight,
        "adaptive_drafts": False,
        "block_size": size,
    }
    driver = driver_of(
        "fabricated", device, made=PartlyWrongDrafter(1000, drafts), num_blocks=60, prefix_cache=False, **options
    )
    answers(driver, PROMPTS[:1], max_tokens=100)
    driver.ask("held", PROMPTS[0], max_tokens=100)
    held: list[int] = []
    for _ in range(4000):
        with torch.inference_mode():
            driver.tick()
            device.skip()
        if "held" in driver.worker.requests:
            known_tokens = len(PROMPTS[0]) + len(driver.tokens("held"))
            bound = min(known_tokens + in_flight * (1 + drafts), len(PROMPTS[0]) + 100)
            blocks = driver.worker.usage()["blocks"]
            # One more is allocated early.
            assert blocks <= -(-bound // size) + 1, (known_tokens, blocks)
            held.append(blocks)
    assert "held" in driver.ends
    assert max(held) > 20
