"""Heads over the hidden states of a stage whose layers are cut across simulated ranks: tokens and acceptance are those of one
device, and it is noticed if a wait or a rule is missing that drafts need between ranks."""

import functools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from torch import Tensor

from omni.parallel import RankLayout
from omni_ar.kernels.step import drafts
from omni_ar.kernels.step.draft_state import DRAFT_FIELDS
from omni_ar.kernels.step.state import ROW_FIELDS, RowState
from omni_ar.run import pipeline, source
from omni_ar.run.allocator import Allocator
from omni_ar.run.packer import StepPacker
from omni_ar.run.pipeline import HiddenTransfers, TokenMessage
from tests.stages.omni_ar.simulated_heads import HeadStage, Known, crowded_heads, failing_heads, heads
from tests.stages.omni_ar.simulated_stage import Scenario, run_kind
from tests.support.tiers import SLOW, few
from tests.support.trained_heads import KINDS, MOST, PROMPTS, trained

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("cheap_passes")]

LAYOUTS = (RankLayout(pipeline=2), RankLayout(pipeline=3), RankLayout(2, 2))
CASES = [(kind, seed) for seed in range(30) for kind in KINDS]


def play(kind: str, seed: int, plan: Callable[..., Scenario] = heads, **removal: Any) -> HeadStage:
    return run_kind(HeadStage, plan(kind, seed, LAYOUTS[seed % len(LAYOUTS)]), seed, **removal)


@pytest.mark.parametrize(("kind", "seed"), few(1, CASES, SLOW))
def test_drafts_change_no_request(kind: str, seed: int) -> None:
    play(kind, seed)


@pytest.mark.plants_faults
@pytest.mark.parametrize(("kind", "seed"), few(0, CASES, SLOW))
def test_with_steps_that_fail_after_the_last_layer_range(kind: str, seed: int) -> None:
    play(kind, seed, failing_heads)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_everything_happens_in_60_seeds(kind: str) -> None:
    totals = Counter[str]()
    for seed in range(100, 160):
        totals += play(kind, seed, crowded_heads if seed % 3 == 0 else heads).counters
    rare = {
        event: totals[event] for event in ("aborts", "preemptions", "cached_tokens", "checked") if totals[event] < 20
    }
    assert not rare, f"{rare} in {totals}"
    assert totals["accepted_drafts"] > 500


def together(kind: str, layout: RankLayout, **options: Any) -> Scenario:
    """All prompts in the first step, so that every later one verifies drafts of all its rows."""
    plan = heads(kind, 0, layout)
    given: dict[str, Any] = {"max_num_seqs": len(PROMPTS), "num_blocks": None, "max_num_batched_tokens": 64}
    given |= {"draft_tokens": 3, "adaptive_drafts": False, "max_in_flight": 2, "prefix_cache": False}
    given |= {"graph_batch_sizes": (2, 4), "block_size": 2} | options
    asks = tuple((0, Known(number, "greedy", most=MOST)) for number in range(len(PROMPTS)))
    return replace(plan, captured=False, options=msgspec.structs.replace(plan.options, **given), asks=asks, leaves={})


PARITY = [
    (kind, layout, drafts, in_flight)
    for kind, layout, drafts, in_flight in [
        ("mtp", LAYOUTS[0], 5, 2),
        ("eagle3", LAYOUTS[1], 3, 1),
        *(
            (kind, layout, drafts, flight)
            for kind in KINDS
            for layout in LAYOUTS
            for drafts, flight in ((1, 8), (5, 3))
        ),
    ]
]


@pytest.mark.parametrize(("kind", "layout", "drafts", "in_flight"), few(1, PARITY, SLOW))
def test_acceptance_is_that_of_one_device(kind: str, layout: RankLayout, drafts: int, in_flight: int) -> None:
    """To the token: as many drafts are verified and accepted as of the head that is run from the start of each text."""
    counts = [trained(kind).counts(text, drafts) for text in range(len(PROMPTS))]
    plan = together(kind, layout, draft_tokens=drafts, max_in_flight=in_flight)
    stage = run_kind(HeadStage, plan, drafts)
    found = stage.counters
    assert (found["drafted_tokens"], found["accepted_drafts"]) == tuple(map(sum, zip(*counts, strict=True)))
    assert found["checked"] > 40
    assert len(stage.made) == found["steps"], "once for each step, at its end"


@pytest.mark.parametrize("kind", few(1, KINDS, SLOW))
def test_drafts_are_those_of_the_step_that_verifies_them(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on one device, a step that verifies drafts has them for each row, and other steps have none, so that a row's rate stays as
    it is. Requests come while others decode."""
    accept, seen = drafts.accept_drafts, Counter[tuple[bool, int]]()

    @functools.wraps(accept)
    def watched(state: RowState, rows_R: Tensor, sampled_RJ: Tensor, out_RW: Tensor) -> None:
        if isinstance(rows_R, Tensor) and state.drafts is not None:
            active_R = state.columns.active[rows_R] != 0
            proposed = state.drafts.columns.proposed[rows_R][active_R].tolist()
            seen.update((sampled_RJ.shape[1] > 1, each) for each in proposed)
        accept(state, rows_R, sampled_RJ, out_RW)

    monkeypatch.setattr(source, "accept_drafts", watched)
    plan = together(kind, LAYOUTS[0], max_num_batched_tokens=5, graph_chunk_sizes=(5,), draft_tokens=2)
    asks = tuple((40 * number, ask) for number, (_, ask) in enumerate(plan.asks))
    run_kind(HeadStage, replace(plan, asks=asks), 3)
    assert set(seen) == {(True, 2), (False, 0)}, seen


# What drafts need between ranks.


def without_drafts(state: RowState, arrivals: Any, message: TokenMessage) -> None:
    """In place of `accept_received`: the number of drafts arrives, and they do not."""
    assert state.drafts is not None
    before = state.drafts.drafts.clone()
    accept_received(state, arrivals, message)
    state.drafts.drafts.copy_(before)


def other_drafts(state: RowState, rows_R: Tensor, slots_SRC: Tensor, next_1: Tensor) -> None:
    """In place of `gather_columns`."""
    slot_1 = next_1.clone()
    gather_columns(state, rows_R, slots_SRC, next_1)
    message_1RC = slots_SRC.index_select(0, slot_1)
    message_1RC[..., ROW_FIELDS + DRAFT_FIELDS :].add_(1).clamp_(max=96)
    slots_SRC.index_copy_(0, slot_1, message_1RC)


def first_alone(slot_NTD: Tensor, tokens: int) -> list[Tensor]:
    """In place of `_entries`: hidden states of earlier layers are not sent."""
    return list(slot_NTD[:1, :tokens].unbind(0))


def no_features(self: HiddenTransfers, stage: Any, own: Any, layers: Iterable[int] = ()) -> None:
    make_transfers(self, stage, own)


def few_blocks(self: StepPacker, plan: Any) -> int:
    return max(0, draft_blocks(self, plan) - 1)


accept_received, gather_columns = pipeline.accept_received, pipeline.gather_columns
make_transfers, draft_blocks, make_allocator = HiddenTransfers.__init__, StepPacker._draft_blocks, Allocator.__init__


def no_late_blocks(self: Allocator, *given: Any, **more: Any) -> None:
    make_allocator(self, *given, **more)
    self._late_draft_tokens = 0


FAULTS: dict[str, tuple[object, str, Any]] = {
    "the message brings the drafts": (pipeline, "accept_received", without_drafts),
    "the drafts in the message are those that are verified": (pipeline, "gather_columns", other_drafts),
    "hidden states of earlier layers are sent": (pipeline, "_entries", first_alone),
    "those that the head reads are carried": (HiddenTransfers, "__init__", no_features),
    "blocks are allocated for drafts that are made early": (Allocator, "__init__", no_late_blocks),
    "drafts attend to all of a row": (StepPacker, "_draft_blocks", few_blocks),
}


FAULT_LAYOUT = RankLayout(pipeline=3)
SEEDS = 12
"""Within which each fault is found out."""


def found_out(kind: str, seed: int, **removal: Any) -> bool:
    plan = heads(kind, seed, FAULT_LAYOUT) if seed else together(kind, LAYOUTS[0], draft_tokens=5)
    try:
        run_kind(HeadStage, plan, seed, **removal)
    except Exception:
        return True
    return False


@pytest.mark.parametrize("rule", few(1, FAULTS))
def test_without_the_rule_there_is_a_visible_effect(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*FAULTS[rule])
    assert any(found_out(kind, seed) for seed in range(SEEDS) for kind in KINDS)


SLOTS_FILE, PIPELINE = "omni_ar.run.transfer_slots", "omni_ar.run.pipeline"
WAITS: dict[tuple[str, str | None], tuple[int, ...]] = {
    (f"{PIPELINE}.take_hidden", None): (0, 1),
    (f"{PIPELINE}.accept_received", None): (1, 2),
    (f"{PIPELINE}.HiddenTransfers.receive.take#1", None): (0, 1),
    (f"{PIPELINE}.ReceivedTokens._accept.accept#1", None): (1, 2),
    (f"{SLOTS_FILE}.SlotRing.fill#1", "ar-tokens"): (1, 2),
    (f"{SLOTS_FILE}.SlotRing.drain#1", "ar"): (0, 1, 2),
}
"""As in test_simulated_ranks.py."""
REMOVALS = [(wait, stream, rank) for (wait, stream), ranks in WAITS.items() for rank in ranks]


@pytest.mark.mutation
@pytest.mark.parametrize(("wait", "stream", "rank"), REMOVALS)
def test_removing_a_wait_at_one_rank_has_a_visible_effect(wait: str, stream: str | None, rank: int) -> None:
    removal = {"without": wait, "without_on": stream, "without_at": rank}
    assert any(found_out("mtp", seed, **removal) for seed in range(SEEDS))
