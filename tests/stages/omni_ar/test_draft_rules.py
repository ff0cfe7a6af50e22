"""Rules of drafts whose absence changes no token: which outputs are remembered, which rows get them, which rows get no drafts."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from omni.sampling import GREEDY, HostRules, SamplingParams
from omni.testing.simulation.late import LateDevice
from omni_ar.drafters import Drafter, DraftRequest, DraftRows, ModelDrafter
from omni_ar.drafters import fabricated as fabricated_file
from omni_ar.drafters.draft_model import ArDraftModel
from omni_ar.drafters.fabricated import FabricatedDrafter
from omni_ar.kernels.step.draft_state import DRAFT_FIELDS, RATE_ONE
from omni_ar.options import ArOptions
from omni_ar.run import phases
from omni_ar.run.phases import keep_chunk_features, sample_positions
from omni_ar.run.pipeline import TokenMessage, accept_received, void_tokens
from omni_ar.run.plan import StepPlan
from omni_ar.run.request import RequestStatus
from omni_ar.run.step import StepContext
from tests.stages.omni_ar.small_drafts import MODEL, PROMPTS, answers, draft_setup, driver_of
from tests.stages.omni_ar.test_accept import DRAFTS, ROWS, Row, new_state
from tests.stages.omni_ar.test_not_finite import ANSWERS, AT, NAN, PROMPT, Spoilt
from tests.stages.omni_ar.test_pipeline import OPTIONS, Pipelined, processors
from tests.support.ar_driver import ArDriver
from tests.support.small_text import NothingTwice, SmallText, TwoInARow

FEW = ArOptions(max_num_seqs=2, block_size=4, drafter="ngram", draft_tokens=3, adaptive_drafts=False, max_in_flight=1)


def remembering() -> FabricatedDrafter:
    return FabricatedDrafter({}, draft_setup(MODEL, 3))


def asked(ids: Sequence[int], sample_index: int = 0, **sampling: Any) -> DraftRequest:
    return DraftRequest(np.array(ids), SamplingParams(**sampling).with_defaults(GREEDY), sample_index)


def test_fabricated_drafts_are_of_an_equal_request():
    """Of its sample too; of a greedy one, whatever its seed."""
    drafter = remembering()
    drafter.finished(asked([1, 2], temperature=1.0, seed=3), [4, 5, 6])
    drafter.finished(asked([1, 2], 1, temperature=1.0, seed=3), [7, 8])
    drafter.finished(asked([1, 2], seed=3), [9])
    assert drafter.predicted_tokens(asked([1, 2], temperature=1.0, seed=3), []) == [4, 5, 6]
    assert drafter.predicted_tokens(asked([1, 2], 1, temperature=1.0, seed=3), []) == [7, 8]
    assert drafter.predicted_tokens(asked([1, 2], temperature=1.0, seed=4), []) == ()
    assert drafter.predicted_tokens(asked([1, 2], seed=4), []) == [9]
    # A row that starts again has outputs already.
    assert drafter.predicted_tokens(asked([1, 2], temperature=1.0, seed=3), [4]) == [5, 6]
    assert drafter.predicted_tokens(asked([1, 2], temperature=1.0, seed=3), [5]) == ()


def test_fabricated_drafts_end_with_the_known_text():
    """Id 0 is a token as any other. The last column of a text has no meaning."""
    text_NL = torch.tensor(
        [
            [3, 4, 0, 6, 0, -1, -1, 9],
            [3, 4, 5, 6, 7, 8, -1, 9],
            [3, 4, 5, 6, 7, 8, 2, 9],
        ],
        dtype=torch.int32,
    )
    drafts_NK, proposed_N = torch.zeros(3, 3, dtype=torch.int64), torch.full((3,), -1)
    rows = DraftRows(
        rows_R=torch.tensor([2, 0, 1]),
        text_NL=text_NL,
        length_N=torch.tensor([1, 4, 6]),
        drafts_NK=drafts_NK,
        proposed_N=proposed_N,
    )
    remembering().draft(rows)
    assert drafts_NK[0].tolist() == [0, 6, 0]
    assert int(drafts_NK[1, 0]) == 8
    assert proposed_N[:2].tolist() == [3, 1]


def test_the_oldest_requests_are_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fabricated_file, "_REMEMBERED", 2)
    drafter = remembering()
    for number in range(3):
        drafter.finished(asked([number]), [number])
    assert [drafter.predicted_tokens(asked([number]), []) for number in range(3)] == [(), [1], [2]]


def test_a_row_s_former_text_makes_no_drafts():
    """It is longer than the text of the row's next owner, whose output is unknown."""
    driver = driver_of("fabricated", draft_tokens=3, max_num_seqs=1, adaptive_drafts=False)
    answers(driver, PROMPTS[:1], max_tokens=40)
    answers(driver, PROMPTS[1:2], max_tokens=20)
    assert driver.counter("drafted_tokens") == 0


class Foreseeing(FabricatedDrafter):
    """Foresees more tokens than fit. seen: for how many rows."""

    seen = 0

    def predicted_tokens(self, request: DraftRequest, outputs: Sequence[int]) -> Sequence[int]:
        self.seen += 1
        return [3] * 1000


def test_a_row_has_no_text_of_a_longer_one_that_starts_with_it():
    """Its own future is unknown, so that it has no drafts."""
    driver = driver_of("fabricated", draft_tokens=3, adaptive_drafts=False, prefix_cache=False)
    driver.ask("known", PROMPTS[0], max_tokens=40)
    driver.run()
    driver.ask("again", PROMPTS[0], max_tokens=40)
    driver.ask("new", PROMPTS[4], max_tokens=20)
    driver.run()
    assert driver.done("again").counts["accepted_drafts"] > 20
    assert driver.done("new").counts["drafted_tokens"] == 0


def test_a_prompt_does_not_move_the_rate_of_its_row():
    """No draft of it is compared with the first token."""
    driver = driver_of("fabricated", draft_tokens=3, max_num_seqs=1)
    driver.ask("one", PROMPTS[0], max_tokens=1)
    driver.run()
    assert driver.runner._state.drafts is not None
    assert driver.runner._state.drafts.columns.rate[0] == RATE_ONE // 2


@pytest.mark.parametrize(
    ("edits", "processors", "kernel"), [(None, False, True), ("some", False, False), (None, True, False)]
)
def test_the_kernel_samples_rows_without_edits_and_processors(
    edits: Any, processors: bool, kernel: bool, monkeypatch: pytest.MonkeyPatch
):
    """At all positions of their drafts; it knows nothing of edits and processors."""
    calls: list[Mapping[str, Any]] = []
    state = new_state([Row(limit=9, length=5) for _ in range(ROWS)])
    assert state.drafts is not None
    monkeypatch.setattr(phases, "runs_kernel", lambda logits: True)
    monkeypatch.setattr(phases, "fused_sample", lambda *given, **named: calls.append(named))
    monkeypatch.setattr(phases, "sample_drafted", lambda logits, *others: torch.full((logits.shape[0],), 3))
    sampled_RJ = torch.zeros(2, 4, dtype=torch.int64)
    flags: Any = SimpleNamespace(processors=processors)
    sample_positions(state, torch.zeros(8, 11), torch.tensor([0, 2]), flags, edits, (), sampled_RJ)
    assert bool(sampled_RJ.eq(3).all()) is not kernel
    assert len(calls) == kernel
    for named in calls:
        assert named["by_row"]
        assert named["drafts_NK"] is state.drafts.drafts
        assert named["out_R"].data_ptr() == sampled_RJ.data_ptr()
        assert named["out_R"].shape == (8,)


def test_more_is_foreseen_than_a_row_can_verify():
    drafter = Foreseeing({}, draft_setup(MODEL, 3))
    assert answers(driver_of("fabricated", made=drafter)) == answers(driver_of())
    assert drafter.seen == len(PROMPTS)


def test_a_row_that_verifies_no_drafts_has_none_made():
    """The drafter gives it no known output, and its steps verify no drafts."""
    drafter, plans = Foreseeing({}, draft_setup(MODEL, 3)), list[StepPlan]()
    driver = driver_of("fabricated", LateDevice(2), made=drafter, draft_tokens=3)
    execute_model = driver.runner.execute_model

    def kept(plan: StepPlan) -> StepContext:
        plans.append(plan)
        return execute_model(plan)

    driver.runner.execute_model = kept  # type: ignore[method-assign]
    driver.ask("ruled", PROMPTS[0], max_tokens=8, rules=HostRules(host_processors=(NothingTwice(11),)))
    answers(driver, PROMPTS[1:2], max_tokens=1)
    assert len(driver.tokens("ruled")) == 8
    assert drafter.seen == 1, "for the other row"
    assert len(plans) >= 8
    assert not any(plan.drafts for plan in plans)


@pytest.mark.parametrize("where", ["host", "device"])
def test_a_row_with_a_processor_verifies_no_drafts_beside_others(where: str):
    """Though its text repeats."""
    plain, drafted = (
        ArDriver(MODEL, LateDevice(3), options, processors=processors(11))
        for options in (ArOptions(max_num_seqs=2), msgspec.structs.replace(FEW, drafter_args={"fewest": 1}))
    )
    for driver in (plain, drafted):
        rules = HostRules(host_processors=(NothingTwice(11, 1),) if where == "host" else ())
        named = {"favour": {"bias": 5.0}} if where == "device" else {}
        driver.ask("ruled", PROMPTS[3], max_tokens=20, rules=rules, processors=named)
        answers(driver, PROMPTS[:1], max_tokens=40)
    assert drafted.tokens("ruled") == plain.tokens("ruled")
    assert "drafted_tokens" not in drafted.done("ruled").counts
    assert drafted.counter("drafted_tokens") > 10


def test_the_edits_of_a_row_behind_others_reach_its_first_position():
    """In a step with drafts its logits are not at its place in the batch."""

    def ask(driver: ArDriver, suffix: str) -> list[list[int]]:
        driver.ask(f"free{suffix}", PROMPTS[0], max_tokens=40)
        rules = HostRules(host_processors=(NothingTwice(11),))
        driver.ask(f"ruled{suffix}", PROMPTS[3], max_tokens=20, rules=rules)
        driver.run()
        return [driver.tokens(f"{name}{suffix}") for name in ("free", "ruled")]

    driver = driver_of("fabricated", LateDevice(2), draft_tokens=3, adaptive_drafts=False)
    assert ask(driver, " once") == ask(driver, " again") == ask(driver_of(device=LateDevice(1)), "")
    assert driver.counter("accepted_drafts") > 10


@pytest.mark.usefixtures("cheap_passes")
def test_rows_go_on_to_draft_behind_steps_with_chunks():
    """Such a step makes no drafts, which does not mean that none are worth their time."""
    right = ModelDrafter(ArDraftModel(MODEL, 11), 3)
    driver = driver_of("ngram", made=right, draft_tokens=3, max_in_flight=1, prefix_cache=False)
    driver.ask("first", PROMPTS[0], max_tokens=60)
    for _ in range(4):
        driver.tick()
    driver.ask("second", PROMPTS[1], max_tokens=1)
    driver.run()
    counts = driver.done("first").counts
    assert counts["accepted_drafts"] == counts["drafted_tokens"] > 35


def test_features_of_chunks_are_those_of_their_last_tokens():
    """A place of a captured batch that no chunk uses has length 0, and row 0 in name only."""
    null_row = 5
    features_TH, kept_NJH = torch.arange(8.0)[:, None], torch.full((null_row + 1, 3, 1), -1.0)
    first_N = torch.full((null_row + 1,), -1)
    length_N = torch.tensor([9, 9, 7, 9, 9, 0])
    rows_P4 = torch.tensor([[1, 2, 3, 4], [0, 0, 0, 0]])
    keep_chunk_features(features_TH, torch.tensor([2, null_row]), length_N, rows_P4, null_row, kept_NJH, first_N)
    assert kept_NJH[:null_row, 0, 0].tolist() == [-1, 4, 0, -1, -1]
    assert first_N[:null_row].tolist() == [-1, 4 + 3 - 1, 7, -1, -1]


class Wrong(Drafter):
    """Id 0, as many as a step can verify."""

    def draft(self, rows: DraftRows) -> None:
        rows.drafts_NK.index_fill_(0, rows.rows_R, 0)
        rows.proposed_N.index_fill_(0, rows.rows_R, rows.drafts_NK.shape[1])


def test_steps_of_rows_that_have_ended_take_no_token_from_the_count():
    """The device ends a row at its stop id, and the steps that are in flight then give it none."""
    never = answers(driver_of(), PROMPTS[2:3], suppress_token_ids=(0,), max_tokens=12)[0]
    stop = next(token for token in never if never.index(token) > 4)
    given = {"suppress_token_ids": (0,), "stop_token_ids": (stop,), "max_tokens": 40}
    driver, rows = driver_of("ngram", LateDevice(3), made=Wrong(), draft_tokens=3, max_in_flight=6), 0
    execute_model = driver.runner.execute_model

    def counted(plan: StepPlan) -> StepContext:
        nonlocal rows
        rows += len(plan.decodes)
        return execute_model(plan)

    driver.runner.execute_model = counted  # type: ignore[method-assign]
    assert answers(driver, PROMPTS[2:3], **given)[0][-1] == stop
    assert driver.counter("accepted_drafts") == 0
    assert driver.counter("decode_tokens") == rows > never.index(stop) + 1


def test_a_step_in_which_a_request_fails_counts_no_drafts():
    driver = ArDriver(Spoilt(AT, NAN), options=msgspec.structs.replace(FEW, check_logits=True), drafter=Wrong())
    driver.ask("bad", PROMPT, max_tokens=30, suppress_token_ids=(0,))
    driver.run()
    assert "NaN" in str(driver.error("bad"))
    assert driver.counter("drafted_tokens") == 3 * driver.counter("drafted_steps") == 3 * (ANSWERS["bad"].index(AT) - 1)


def test_a_preempted_request_drafts_as_one_that_begins():
    """The device sets its rate again, and a drafter runs all of its text again."""
    driver = driver_of("ngram", made=Wrong(), draft_tokens=3, max_in_flight=1)
    driver.ask("one", PROMPTS[0], max_tokens=60, suppress_token_ids=(0,))
    for _ in range(40):
        driver.tick()
    request = driver.worker.requests["one"]
    assert request.draft_gain == 0
    request.drafter_tokens = 3
    driver.worker._scheduler.move(request, RequestStatus.ISOLATING)
    driver.tick()
    assert request.num_computed_tokens > len(PROMPTS[0])
    again = driver.worker.requests["one"]
    assert again.draft_gain == driver.runner.draft_policy.start_gain(1) > 0
    assert again.drafter_tokens is None
    driver.run()
    assert driver.done("one").reason == "length"


class Known(FabricatedDrafter):
    """The answer of a request whose model fails."""

    def predicted_tokens(self, request: DraftRequest, outputs: Sequence[int]) -> Sequence[int]:
        return ANSWERS["bad"][len(outputs) :]


@pytest.mark.parametrize("drafts", [1, 3, 5])
def test_a_request_that_fails_in_a_run_has_the_tokens_before(drafts: int):
    options = msgspec.structs.replace(FEW, check_logits=True, draft_tokens=drafts)
    model = Spoilt(AT, NAN)
    driver = ArDriver(model, options=options, drafter=Known({}, draft_setup(model, drafts)))
    driver.ask("bad", PROMPT, max_tokens=30)
    driver.run()
    assert "NaN" in str(driver.error("bad"))
    assert driver.tokens("bad") == ANSWERS["bad"][: ANSWERS["bad"].index(AT)]


@pytest.mark.parametrize("stop", [False, True])
def test_a_request_without_a_possible_id_in_a_run_has_the_tokens_before(stop: bool):
    """Unless they end it."""
    text = ANSWERS["bad"]
    given = {"allowed_token_ids": text[:4], "bad_words_ids": [(*text[:4], each) for each in text[:4]]}
    rules = HostRules(stops=TwoInARow(frozenset(text[1:3]))) if stop else HostRules()
    driver = ArDriver(SmallText(), options=FEW, drafter=Known({}, draft_setup(SmallText(), 3)))
    driver.ask("bad", PROMPT, given, max_tokens=30, rules=rules)
    driver.run()
    if stop:
        assert driver.done("bad").reason == "stop"
    else:
        assert "leaves no token that may come next" in str(driver.error("bad"))
        assert driver.tokens("bad") == text[:4]


# With several layer ranges.


def test_drafts_without_weights_need_no_blocks_early():
    """Only keys and values of a drafter are written for drafts that the next step verifies."""
    used: dict[str, int] = {}
    weights: Mapping[str, Mapping[str, object]] = {"ngram": {"fewest": 1}, "deep": {"noise": 0.1}}
    for name, args in weights.items():
        given = {"drafter": name, "drafter_args": args, "draft_tokens": 8, "max_model_len": 64}
        cut = Pipelined(2, msgspec.structs.replace(OPTIONS, **given))
        cut.driver.ask("one", [1, 2, 3], max_tokens=40)
        cut.driver.tick()
        used[name] = cut.driver.worker.usage()["blocks"]
        cut.run()
    assert used == {"ngram": 1, "deep": 3}


def test_drafts_without_weights_are_made_when_none_are_wanted():
    """They are free, and the first is compared with the token, so that the rate of a text that begins to repeat rises."""
    given = {"drafter": "ngram", "drafter_args": {"fewest": 1}, "draft_tokens": 3, "adaptive_drafts": True}
    cut = Pipelined(2, msgspec.structs.replace(OPTIONS, **given, max_in_flight=1))
    contexts: list[bool] = []
    late = cut.driver.runner._late_drafts
    assert late is not None
    launch = late.launch

    def listed(context: StepContext, cache: Any) -> bool:
        contexts.append(launch(context, cache))
        return contexts[-1]

    late.launch = listed  # type: ignore[method-assign]
    cut.driver.ask("one", list(range(20, 29)), max_tokens=12, suppress_token_ids=tuple(range(29)))
    cut.run()
    assert all(contexts)
    assert len(contexts) > 3


def test_drafts_without_weights_beside_a_part_of_a_prompt_alone():
    """The step samples no row, so it makes no drafts."""
    given = {"drafter": "ngram", "drafter_args": {"fewest": 1}, "max_num_batched_tokens": 3}
    cut = Pipelined(2, msgspec.structs.replace(OPTIONS, **given))
    cut.driver.ask("one", [5, 6, 7] * 5, max_tokens=4)
    cut.run()
    assert len(cut.driver.tokens("one")) == 4


def test_the_message_of_a_failed_step_changes_no_row():
    state = new_state([Row(limit=9, length=5) for _ in range(ROWS)])
    assert state.drafts is not None
    state.drafts.fields[:ROWS], state.drafts.drafts[:ROWS] = 2, 5
    before = [each.clone() for each in (state.fields, state.drafts.fields, state.drafts.drafts)]
    columns = state.fields.shape[1] + DRAFT_FIELDS + DRAFTS
    message = TokenMessage(columns_RC=torch.full((3, columns), 7), codes_RD=torch.empty(3, 0))
    void_tokens(state, ROWS, message)
    accept_received(state, SimpleNamespace(wait=lambda: None), message)  # type: ignore[arg-type]
    after = (state.fields, state.drafts.fields, state.drafts.drafts)
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one[:ROWS], other[:ROWS])
    assert not state.drafts.fields[ROWS].any(), "nor does the null row verify drafts"
    assert not state.columns.active[ROWS], "nor does it become a row that runs"
