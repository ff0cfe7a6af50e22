"""Drafts that are made at the end of a step, at the rank with the last layer range: their launches."""

from functools import cache
from typing import Any

import msgspec
import pytest
from torch import Tensor

from omni_ar.drafters import DraftRows, ModelDrafter
from omni_ar.drafters.model import _Entries
from omni_ar.drafters.ngram import NgramDrafter
from omni_ar.run.drafting import Drafting
from omni_ar.run.late_drafts import LateDrafts
from omni_ar.run.step import StepContext
from tests.stages.omni_ar.test_pipeline import OPTIONS, PROMPTS, TOKENS, Pipelined, processors, whole
from tests.support.ar_driver import ArDriver
from tests.support.deep_models import VOCABULARY, Deep, filled
from tests.support.devices import WarmingDevice
from tests.support.tiers import SLOW, few

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("cheap_passes")]

DRAFTED = msgspec.structs.replace(OPTIONS, drafter="deep", drafter_args={"noise": 0.1}, adaptive_drafts=False)


def test_decode_steps_replay_captured_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    made, contexts = list[int](), list[StepContext]()
    make, launch = Drafting.draft_launches, LateDrafts.launch

    def counted(self: Drafting, rows_R: Any, *given: Any) -> Any:
        made.append(rows_R.shape[0])
        return make(self, rows_R, *given)

    def listed(self: LateDrafts, context: StepContext, cache: Any) -> bool:
        contexts.append(context)
        return launch(self, context, cache)

    monkeypatch.setattr(Drafting, "draft_launches", counted)
    monkeypatch.setattr(LateDrafts, "launch", listed)
    counts: list[dict[str, int]] = []
    for is_captured in (False, True):
        made.clear()
        contexts.clear()
        cut = Pipelined(2, msgspec.structs.replace(DRAFTED, graph_batch_sizes=(2, 4)), captured=is_captured)
        assert made == ([4, 2] if is_captured else []), "the sizes that are captured"
        cut.driver.ask_all(PROMPTS, max_tokens=TOKENS)
        cut.run()
        counts.append({name: n for name, n in cut.driver.worker.counters().items() if "draft" in name})
    captured = [context for context in contexts if context.launch.padded_rows is not None]
    assert len(captured) > 5
    assert len(made) - 2 == len(contexts) - len(captured)
    assert counts[0] == counts[1]
    assert counts[0]["accepted_drafts"] > 20


@pytest.mark.parametrize("times", [1, 2])
def test_captures_that_run_leave_drafts_in_the_right_slots(times: int) -> None:
    """Of three slots, after so many runs for each of two sizes: these graphs write the messages, too."""
    options = msgspec.structs.replace(DRAFTED, graph_batch_sizes=(2, 4))
    cut = Pipelined(3, options, device=WarmingDevice(times), captured=True)
    cut.driver.ask_all(PROMPTS, max_tokens=TOKENS)
    cut.run()
    assert cut.driver.all_tokens(len(PROMPTS)) == whole(PROMPTS).all_tokens(len(PROMPTS))


def test_other_pages_drop_the_captured_drafts() -> None:
    """They refer to those before."""
    cut = Pipelined(2, DRAFTED, captured=True)
    runner = cut.driver.runner
    assert runner._late_drafts is not None
    assert runner._late_drafts._graphs.find(None, 1)[1] is not None
    runner.allocate(8)
    assert runner._late_drafts._graphs.find(None, 1)[1] is None
    cut.end()


def test_without_a_wish_for_drafts_none_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a drafter with weights, whose passes take time."""
    made, launch = list[bool](), LateDrafts.launch

    def listed(self: LateDrafts, context: StepContext, cache: Any) -> bool:
        made.append(launch(self, context, cache))
        assert made[-1] == bool(context.launch.draft_blocks)
        return made[-1]

    monkeypatch.setattr(LateDrafts, "launch", listed)
    wrong = msgspec.structs.replace(DRAFTED, drafter_args={"noise": 50.0}, adaptive_drafts=True)
    cut = Pipelined(2, wrong)
    cut.driver.ask_all(PROMPTS[:1], max_tokens=60)
    cut.run()
    assert made[:2] == [True, True]
    assert not any(made[-15:])
    assert cut.driver.counter("drafted_tokens") < 60


def test_rows_beside_a_part_of_a_prompt_get_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their next step may have no chunks, and would find none."""
    made, launch = list[tuple[int, bool, bool]](), LateDrafts.launch

    def listed(self: LateDrafts, context: StepContext, cache: Any) -> bool:
        step = context.launch
        made.append((step.count, step.packed.chunks is None, launch(self, context, cache)))
        return made[-1][2]

    monkeypatch.setattr(LateDrafts, "launch", listed)
    cut = Pipelined(2, msgspec.structs.replace(DRAFTED, max_num_batched_tokens=3))
    cut.driver.ask("first", [1, 2, 3], max_tokens=30)
    for _ in range(3):
        cut.driver.tick()
    cut.driver.ask("second", list(range(1, 21)), max_tokens=1)
    cut.run()
    beside = [drafts for count, proposes, drafts in made if count and not proposes]
    assert len(beside) > 3
    assert all(beside)


def test_rows_that_want_drafts_get_them_beside_one_that_has_none() -> None:
    """And beside the end of its prompt."""
    counts: list[dict[str, int]] = []
    for others in (0, 3):
        right = msgspec.structs.replace(DRAFTED, drafter_args={"noise": 0.0}, max_in_flight=1)
        cut = Pipelined(2, right, processors=processors())
        cut.driver.ask("free", PROMPTS[1], max_tokens=30)
        for number in range(others):
            named = {"favour": {"bias": 0.3}}
            cut.driver.ask(f"ruled {number}", PROMPTS[1], max_tokens=30, processors=named)
        cut.run()
        counts.append({name: n for name, n in cut.driver.done("free").counts.items() if "draft" in name})
    assert counts[0] == counts[1]
    assert counts[0]["accepted_drafts"] == counts[0]["drafted_tokens"] > 15


def test_drafts_have_the_blocks_that_they_attend_to_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block has one token, and all drafts are right, so that the bounds are met."""
    run, spare = ModelDrafter._run, list[int]()

    def checked(self: ModelDrafter, entries: _Entries, rows: DraftRows) -> Tensor:
        assert rows.pages is not None
        if entries.valid_RE.any():
            spare.append(rows.pages.blocks - 1 - int(entries.index_RE[entries.valid_RE].max()))
        return run(self, entries, rows)

    monkeypatch.setattr(ModelDrafter, "_run", checked)
    right = msgspec.structs.replace(DRAFTED, drafter_args={"noise": 0.0}, block_size=1, max_in_flight=1)
    cut = Pipelined(2, right)
    cut.driver.ask_all(PROMPTS[2:4], max_tokens=24)
    cut.run()
    assert min(spare) == 0
    assert sum(each == 0 for each in spare) > 5


def test_no_blocks_are_held_after_the_last_token() -> None:
    """A request for which the stage has just enough blocks would wait for ever for more."""
    cut = Pipelined(2, msgspec.structs.replace(DRAFTED, num_blocks=4, draft_tokens=8, max_model_len=40))
    cut.driver.ask("full", list(range(14)), max_tokens=2)
    cut.run()
    assert len(cut.driver.tokens("full")) == 2


WITH: dict[str, dict[str, Any]] = {
    "often right": {"drafter": "deep", "drafter_args": {"noise": 0.1}},
    "often wrong": {"drafter": "deep", "drafter_args": {"noise": 0.5}},
    "always wrong": {"drafter": "deep", "drafter_args": {"noise": 50.0}},
    "ngram": {"drafter": "ngram", "drafter_args": {"fewest": 1}},
    "fabricated": {"drafter": "fabricated", "drafter_args": {"rate": 0.4}},
}
LATE = [(name, adaptive, size) for adaptive in (True, False) for size in (2, 3) for name in WITH]


def counts_of(driver: ArDriver) -> list[dict[str, int]]:
    """Of requests one after the other: beside others, steps with their prompts verify no drafts."""
    found = []
    for number, prompt in enumerate([*PROMPTS, *PROMPTS]):
        driver.ask(str(number), prompt, max_tokens=20)
        driver.gather_all()
        found.append({name: n for name, n in driver.done(str(number)).counts.items() if "draft" in name})
    return found


@cache
def counts_of_one_device(name: str, adaptive: bool) -> list[dict[str, int]]:
    options = msgspec.structs.replace(OPTIONS, **WITH[name], adaptive_drafts=adaptive, max_in_flight=1)
    return counts_of(ArDriver(filled(Deep()), None, options))


@pytest.mark.parametrize(("name", "adaptive", "size"), few(1, LATE, SLOW))
def test_acceptance_is_that_of_one_device_without_lookahead(name: str, adaptive: bool, size: int) -> None:
    """By position and request, to the token, also where the number of drafts falls with their rate."""
    alone = counts_of_one_device(name, adaptive)
    assert sum(each.get("drafted_tokens", 0) for each in alone) > 50
    cut = Pipelined(size, msgspec.structs.replace(OPTIONS, **WITH[name], adaptive_drafts=adaptive, max_in_flight=4))
    assert counts_of(cut.driver) == alone
    cut.end()


def test_ids_outside_the_vocabulary_are_no_drafts_at_any_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks with earlier layers embed the drafts that they receive."""
    draft = NgramDrafter.draft

    def wrong(self: NgramDrafter, rows: DraftRows) -> None:
        draft(self, rows)
        rows.drafts_NK[:, 1].fill_(VOCABULARY)
        rows.drafts_NK[:, 2].fill_(-1)
        rows.proposed_N.index_fill_(0, rows.rows_R, 3)

    monkeypatch.setattr(NgramDrafter, "draft", wrong)
    options = msgspec.structs.replace(OPTIONS, drafter="ngram", draft_tokens=3, adaptive_drafts=False)
    cut = Pipelined(2, options)
    cut.driver.ask_all(PROMPTS, max_tokens=TOKENS)
    cut.run()
    assert cut.driver.all_tokens(len(PROMPTS)) == whole(PROMPTS).all_tokens(len(PROMPTS))
    assert cut.driver.counter("drafted_tokens_1") > 0
    assert cut.driver.counter("drafted_tokens_2") == 0
