"""The limits of a step, and the order in which requests start, run and give way."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from omni.device import COMPLETED
from omni.device.cpu import CpuDevice
from omni.errors import InputError
from omni.payload import PageSlice, Payload
from omni.sampling import SamplingParams
from omni.stage import Listeners, Produced
from omni_ar.inputs import PromptHidden
from omni_ar.options import ArOptions
from omni_ar.run.allocator import Allocator, RowTable
from omni_ar.run.blocks.pool import BlockPool, BlockTable
from omni_ar.run.blocks.reclaim import Reclaimer, Spiller
from omni_ar.run.draft_policy import DraftPolicy
from omni_ar.run.limits import MAX_STARTS, Limits
from omni_ar.run.plan import PrefillChunk, StepPlan
from omni_ar.run.request import ArRequest, RequestStatus
from omni_ar.run.scheduler import Scheduler
from tests.stages.omni_ar.statuses import check_statuses
from tests.support.ar_driver import plain_prompt
from tests.support.small_text import SmallText

SIZE, MODEL_LEN = 4, 40


def request(name: str, length: int, max_tokens: int, order: tuple[int, ...] = ()) -> ArRequest:
    made = ArRequest(name, SamplingParams(max_tokens=max_tokens), set(), order or (ord(name[0]),))
    made.prompt = plain_prompt([ord(name[0])] * length)
    return made


class Stage:
    """A scheduler with its tables, run as a worker would, on a device that is never late."""

    def __init__(
        self,
        rows: int,
        blocks: int,
        budget: int,
        *,
        prefix_cache: bool = True,
        batches: int = 1,
        listeners: Listeners | None = None,
        short: int = 512,
    ) -> None:
        """short: prompt tokens of a step while the slack of one of `listeners` is short."""
        device = CpuDevice()
        options = ArOptions(
            max_num_seqs=rows,
            max_model_len=MODEL_LEN,
            block_size=SIZE,
            max_num_batched_tokens=budget,
            short_slack_prefill_tokens=short,
        )
        limits = Limits.of("text", options, SmallText().shape, micro_batches=batches)
        self.rows, self.blocks = RowTable(rows), BlockPool(blocks)
        spiller = Spiller(device, device.stream("ar"), MODEL_LEN)
        self.reclaimer = Reclaimer(self.blocks, spiller)
        self.allocator = Allocator(
            self.rows,
            self.blocks,
            self.reclaimer,
            spiller,
            limits=limits,
            code_pages=None,
            prefix_cache=prefix_cache,
            conditioned=False,
        )
        policy = DraftPolicy.of(limits, SmallText(), None)
        self.scheduler = Scheduler(self.allocator, limits, False, policy, listeners=listeners)
        self.admitted: list[str] = []
        self.live: list[ArRequest] = []

    def add(self, *requests: ArRequest) -> None:
        for made in requests:
            made.max_tokens = self.scheduler.checked_max_tokens(made, "text")
            self.scheduler.add(made)
            self.live.append(made)

    def plan(self) -> StepPlan | None:
        """The next step, its tokens not yet there."""
        plan = self.scheduler.plan()
        if plan is not None:
            self.admitted += [r.id for r in plan.starts]
            self.scheduler.launched(plan)
        check_statuses(self.scheduler, self.live)
        return plan

    def step(self) -> StepPlan | None:
        plan = self.plan()
        for r in plan.sampled if plan is not None else ():
            r.outputs.append(1)
            if len(r.outputs) == r.max_tokens:
                self.leave(r)
        return plan

    def leave(self, made: ArRequest) -> None:
        self.live.remove(made)
        self.scheduler.move(made, RequestStatus.FINISHED)
        if made.row is not None:
            self.rows.release(made.row)
        if made.table is not None:
            self.reclaimer.add_table(made.table)
        self.reclaimer.tick()

    def must_step(self) -> StepPlan:
        plan = self.step()
        assert plan is not None, "nothing runs"
        return plan

    def finish(self) -> None:
        while self.step():
            pass
        assert not self.live

    def names(self) -> list[str]:
        plan = self.step()
        return [r.id for r in plan.requests] if plan is not None else []

    def fail(self) -> list[str]:
        """The next step fails. Returns its requests."""
        plan = self.scheduler.plan()
        assert plan is not None
        self.scheduler.retry(plan)
        return [r.id for r in plan.requests]

    def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.must_step()


SHAPES = st.lists(st.tuples(st.integers(1, MODEL_LEN - 1), st.integers(1, MODEL_LEN)), min_size=1, max_size=12)


def lettered(shapes: Sequence[tuple[int, int]]) -> list[ArRequest]:
    return [request(chr(ord("a") + index), *shape) for index, shape in enumerate(shapes)]


@given(SHAPES, st.integers(1, 10), st.integers(10, 40), st.integers(1, 50), st.integers(1, 4))
@example(shapes=[(1, 21), (1, 21)], rows=2, blocks=10, budget=1, batches=2)
def test_every_request_runs_to_its_end_within_budget(
    shapes: list[tuple[int, int]], rows: int, blocks: int, budget: int, batches: int
):
    stage = Stage(rows, blocks, budget, batches=batches)
    requests = lettered(shapes)
    stage.add(*requests)
    steps = 0
    while plan := stage.step():
        assert sum(chunk.length for chunk in plan.chunks) <= max(1, budget - len(plan.decodes))
        assert len(plan.requests) <= rows
        assert len(plan.starts) <= MAX_STARTS
        assert len(set(map(id, plan.requests))) == len(plan.requests)
        steps += 1
    assert all(len(r.outputs) == min(shape[1], MODEL_LEN - shape[0]) for r, shape in zip(requests, shapes, strict=True))
    assert stage.rows.used == stage.blocks.used == 0
    assert not stage.live
    # Whoever is first gets a token or a chunk in every step, or in its turn: with several micro-batches, a step may have one
    # row of two, and then tokens that a preempted request computes again come on top.
    assert steps <= batches * sum(r.length + r.max_tokens for r in requests)


@given(SHAPES, st.permutations(range(12)))
def test_the_first_in_serving_order_starts_first_whenever_it_came(shapes: list[tuple[int, int]], orders: Sequence[int]):
    stage = Stage(rows=2, blocks=40, budget=30)
    requests = lettered(shapes)
    for made, order in zip(requests, orders, strict=False):
        made.order = (order,)
    stage.add(*requests)
    stage.finish()
    in_order = [made.id for made in sorted(requests, key=lambda made: made.order)]
    assert list(dict.fromkeys(stage.admitted)) == in_order


@given(SHAPES, st.data())
def test_a_request_that_leaves_early_lets_the_others_run(shapes: list[tuple[int, int]], data: st.DataObject):
    stage = Stage(2, 12, 30)
    requests = lettered(shapes)
    stage.add(*requests)
    gone: list[ArRequest] = []
    while stage.live:
        quitter = data.draw(st.sampled_from([None, *stage.live]))
        if quitter is not None:
            stage.leave(quitter)
            gone.append(quitter)
        plan = stage.step()
        assert plan is not None or not stage.live
        assert plan is None or not set(gone).intersection(plan.requests)
    assert all(len(made.outputs) == made.max_tokens for made in requests if made not in gone)
    assert stage.rows.used == stage.blocks.used == 0


def test_one_step_sets_up_so_many_rows_and_no_more():
    stage = Stage(rows=2 * MAX_STARTS, blocks=160, budget=400)
    stage.add(*lettered([(1, 9)] * 2 * MAX_STARTS))
    assert len(stage.must_step().starts) == MAX_STARTS


def test_prompts_are_cut_short_while_the_slack_of_a_listener_is_short():
    now = [0.0]
    listeners = Listeners(lambda: now[0], short=0.5)
    stage = Stage(rows=4, blocks=40, budget=20, listeners=listeners, short=3)
    listeners.join("a")
    stage.add(request("a", 4, 20), request("b", 9, 5))
    assert stage.must_step().chunk_tokens == 13, "nobody hears anything yet"
    listeners.add_sound("a", 1.0)
    stage.add(request("c", 12, 5))
    now[0] = 0.6
    for tokens, at in ((3, 0.8), (3, 2.0), (3, 2.0)):
        plan = stage.must_step()
        assert (plan.chunk_tokens, len(plan.decodes)) == (tokens, 2)
        now[0] = at
    listeners.add_sound("a", 1.0)
    assert stage.must_step().chunk_tokens == 3, "the rest of it"
    stage.add(request("d", 12, 5))
    assert stage.must_step().chunk_tokens == 12, "there is plenty of slack"


def test_a_long_prompt_takes_the_rest_of_the_budget_after_decodes():
    stage = Stage(rows=3, blocks=40, budget=6)
    stage.add(request("a", 4, 20), request("b", 2, 20))
    stage.step()
    stage.add(request("c", 13, 5))
    chunks: list[PrefillChunk] = []
    while not any(chunk.last for chunk in chunks):
        plan = stage.must_step()
        assert [r.id for r in plan.decodes] == ["a", "b"], "no decode waits for another request's prompt"
        chunks += plan.chunks
    assert [chunk.length for chunk in chunks] == [4, 4, 4, 1]
    assert [chunk.first for chunk in chunks] == [True, False, False, False]


def test_a_prompt_without_budget_waits_for_one_that_began_before():
    stage = Stage(rows=2, blocks=40, budget=4)
    first, second = request("a", 12, 5), request("b", 12, 5)
    stage.add(first)
    stage.step()
    first.paused = True
    stage.add(second)
    stage.step()
    first.paused = False
    assert [(chunk.request, chunk.length) for chunk in stage.must_step().chunks] == [(first, 4)]


def test_a_refused_request_starts_once_payload_can_be_moved_for_it(monkeypatch: pytest.MonkeyPatch):
    stage = Stage(rows=2, blocks=4, budget=100, prefix_cache=False)
    table = BlockTable.of("gone", stage.blocks.allocate(3), max_blocks=3)
    part = PageSlice(torch.zeros(5, SIZE, 1), table.slots(np.arange(4), SIZE))
    table.add(Produced("gone", Payload(PromptHidden(), {"hidden": part}), COMPLETED))
    stage.reclaimer.add_table(table)
    stage.add(request("a", 12, 4))
    with monkeypatch.context() as busy:
        busy.setattr(Spiller, "ready", False)
        assert stage.names() == []
    assert stage.names() == ["a"]


def test_decodes_that_take_the_whole_budget_leave_a_prompt_one_token():
    stage = Stage(rows=4, blocks=40, budget=2)
    stage.add(*(request(name, 1, 20) for name in "abc"))
    stage.until(lambda: all(len(r.outputs) > 0 for r in stage.live))
    stage.add(request("d", 3, 5))
    plan = stage.must_step()
    assert len(plan.decodes) == 3
    assert [chunk.length for chunk in plan.chunks] == [1]


def test_a_large_request_at_the_head_is_not_overtaken():
    stage = Stage(rows=3, blocks=6, budget=100)
    stage.add(request("r", 8, 4), request("x", 16, 4), request("z", 1, 4))
    stage.finish()
    assert list(dict.fromkeys(stage.admitted)) == ["r", "x", "z"]


def test_a_block_is_taken_from_the_last_in_order_which_keeps_its_row():
    stage = Stage(rows=3, blocks=10, budget=100)
    requests = lettered([(8, 30)] * 3)
    stage.add(*requests)
    stage.step()
    row, third = requests[2].row, requests[2]
    stage.until(lambda: third.table is None)
    assert [made.table is not None for made in requests] == [True, True, False]
    assert third.row == row
    assert stage.allocator.preemptions == 1
    given = list(third.outputs)
    stage.until(lambda: len(third.outputs) > len(given))
    assert third.row == row
    assert third.outputs[: len(given)] == given


def test_a_running_request_is_never_preempted_for_a_later_one():
    stage = Stage(rows=3, blocks=11, budget=100)
    low, high = request("a", 8, 30), request("b", 8, 30)
    stage.add(high, low)
    table = None
    while low in stage.live:
        stage.step()
        table = table or low.table
        assert low.table is (table if low in stage.live else low.table)
    assert stage.allocator.preemptions > 0


def test_a_waiting_request_takes_blocks_from_paused_ones_only():
    stage = Stage(rows=3, blocks=8, budget=100)
    high = request("x", 20, 5)
    stage.add(high)
    stage.step()
    stage.add(request("a", 12, 5))
    assert stage.names() == ["x"], "a waiting request does not evict one that runs, whatever its serving order"
    high.paused = True
    assert stage.names() == ["a"]
    assert high.table is None
    high.paused = False
    stage.scheduler.unblock(high)
    stage.finish()


def test_a_refused_request_starts_once_a_paused_one_can_give_way():
    stage = Stage(rows=2, blocks=6, budget=100, prefix_cache=False)
    running = request("a", 16, 8)
    stage.add(running, request("b", 12, 8))
    assert stage.names() == ["a"], "there are no blocks for the second"
    running.paused = True
    assert stage.names() == ["b"]


def test_a_paused_request_does_not_run_and_delays_no_other():
    stage = Stage(rows=2, blocks=20, budget=100)
    paused, other = request("a", 4, 8), request("b", 4, 8)
    paused.paused = True
    stage.add(paused, other)
    while other in stage.live:
        assert stage.names() == ["b"]
    assert stage.step() is None
    paused.paused = False
    stage.scheduler.unblock(paused)
    stage.finish()


def test_a_request_without_a_row_does_not_delay_one_that_has_one():
    # One is paused, one was preempted: both keep their rows, and the newcomer, which precedes the latter in serving order, gets
    # none.
    stage = Stage(rows=2, blocks=10, budget=100)
    first, second = request("a", 12, 20), request("c", 12, 20)
    stage.add(first, second)
    stage.step()
    stage.until(lambda: second.table is None)
    stage.add(request("b", 4, 4))
    first.paused = True
    assert stage.names() == ["c"]
    stage.until(lambda: second not in stage.live)
    assert stage.names() == ["b"]


def test_requests_of_a_failed_step_run_alone_then_together_again():
    stage = Stage(rows=4, blocks=40, budget=100)
    stage.add(*(request(name, 4, 9) for name in "abc"))
    stage.step()
    assert stage.fail() == ["a", "b", "c"]
    stage.add(request("d", 4, 9))
    assert [stage.names() for _ in range(6)] == [["a"], ["a"], ["b"], ["a", "b"], ["c"], ["a", "b", "c", "d"]]


def test_a_paused_isolated_request_does_not_hold_up_the_next():
    stage = Stage(rows=4, blocks=40, budget=100)
    first = request("a", 4, 3)
    stage.add(first, request("b", 4, 3), request("c", 4, 3))
    stage.step()
    stage.fail()
    first.paused = True
    assert [stage.names() for _ in range(3)] == [["b"], ["b"], ["c"]]
    first.paused = False
    assert ["a"] in [stage.names() for _ in range(2)], "its turn"


def test_newcomers_leave_the_blocks_that_an_isolated_request_waits_for():
    stage = Stage(rows=4, blocks=10, budget=100)
    second = request("b", 20, 5)
    stage.add(request("a", 4, 30), second)
    stage.step()
    stage.fail()
    assert stage.names() == ["a"]
    stage.add(*(request(name, 12, 5) for name in "xyz"))
    stage.until(lambda: second.table is not None)
    assert "x" not in stage.admitted
    stage.finish()


@pytest.mark.parametrize(
    ("length", "max_tokens", "message"),
    [
        (0, 1, "prompt: is empty; give at least one token"),
        (40, 1, "prompt: has 40 tokens, and text takes 40 with at least one generated; shorten it, or raise text.max_"),
        (20, 9, "sampling.text.max_tokens: prompt and output of 29 tokens need 8 blocks, and text has 7"),
        (20, 99, "sampling.text.max_tokens: prompt and output of 40 tokens need 10 blocks, and text has 7"),
    ],
)
def test_a_request_that_can_never_run_is_refused_with_the_numbers(length: int, max_tokens: int, message: str):
    stage = Stage(rows=1, blocks=7, budget=100)
    with pytest.raises(InputError) as caught:
        stage.scheduler.checked_max_tokens(request("r", length, max_tokens), "text")
    assert message in str(caught.value)


def test_a_prompt_may_leave_one_token_to_generate():
    stage = Stage(rows=1, blocks=10, budget=100)
    made = request("r", MODEL_LEN - 1, 30)
    stage.add(made)
    assert made.max_tokens == 1
    assert stage.step() is not None
    assert stage.step() is None


@pytest.mark.parametrize(
    ("rows", "batches", "expected"),
    [
        ("abcd", 1, ["abcd"] * 6),
        ("abcd", 2, ["ab", "cd"] * 3),
        ("abc", 2, ["ab", "c"] * 3),
        ("abcdefg", 3, ["abc", "def", "g"] * 2),
        ("ab", 3, ["a", "b"] * 3),
        ("a", 4, ["a"] * 6),
    ],
)
def test_equal_batches_of_rows_take_turns(rows: str, batches: int, expected: list[str]):
    """No step is left out: with fewer rows than batches, a row is in a step before its newest token is due."""
    stage = Stage(rows=len(rows), blocks=99, budget=99, batches=batches)
    stage.add(*(request(name, 4, 9) for name in rows))
    first = stage.plan()
    assert first is not None
    assert len(first.chunks) == len(rows)
    plans = [stage.plan() for _ in expected]
    assert ["".join(sorted(one.id for one in plan.decodes)) for plan in plans if plan is not None] == expected


def test_prompts_do_not_bring_a_row_into_a_step_before_its_token_is_due():
    stage = Stage(rows=2, blocks=99, budget=5, batches=2)
    stage.add(request("a", 4, 9))
    stage.plan()
    stage.add(request("b", 13, 9))
    plans = [stage.plan() for _ in range(4)]
    assert [([r.id for r in p.decodes], p.chunk_tokens) for p in plans if p is not None] == [
        ([], 5),
        (["a"], 4),
        ([], 4),
        (["a"], 0),
    ]


def test_a_preempted_request_starts_again_when_no_step_of_it_is_in_flight():
    """It continues behind the newest token that the host has read: those in flight would be delivered twice."""
    stage = Stage(rows=2, blocks=20, budget=100)
    made = request("a", 8, 9)
    stage.add(made)
    stage.step()
    stage.plan()
    made.steps_in_flight = 1
    stage.fail()
    assert stage.plan() is None
    assert made.table is None
    assert stage.blocks.available > stage.allocator.blocks_for(8 + 9), "blocks are available"
    made.outputs.append(1)
    made.steps_in_flight = 0
    made.reset_for_recompute()
    again = stage.plan()
    assert again is not None
    assert [(chunk.start + chunk.length, chunk.request) for chunk in again.chunks] == [(8 + 2, made)]


def test_log_probability_requests_wait_for_a_free_scores_slot():
    stage = Stage(rows=3, blocks=20, budget=100)
    scored, other, late = (request(name, 4, 9) for name in "abc")
    for made in (scored, late):
        made.sampling = SamplingParams(max_tokens=9, logprobs=1)
    stage.add(scored, other)
    stage.step()
    stage.add(late)

    def names(can_score: bool) -> list[str]:
        plan = stage.scheduler.plan(can_score)
        assert plan is not None
        stage.scheduler.launched(plan)
        return [r.id for r in plan.requests]

    assert [names(False), names(False), names(True)] == [["b"], ["b"], ["a", "b", "c"]]


def test_an_isolated_request_that_fails_again_has_one_turn_as_before():
    stage = Stage(rows=2, blocks=20, budget=100)
    stage.add(request("a", 4, 9), request("b", 4, 9))
    stage.step()
    assert [stage.fail(), stage.fail()] == [["a", "b"], ["a"]]
    assert [stage.names() for _ in range(4)] == [["a"], ["a"], ["b"], ["a", "b"]]
