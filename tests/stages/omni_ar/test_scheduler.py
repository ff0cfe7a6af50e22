"""What a step may hold, and in which order requests are admitted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni.errors import InputError
from omni.sampling_params import SamplingParams
from omni_ar.run.blocks import BlockPool, RowTable
from omni_ar.run.request import ArRequest
from omni_ar.run.scheduler import Scheduler, StepPlan
from support.ar_driver import plain_prompt

SIZE, MODEL_LEN = 4, 40


def request(name: str, length: int, max_tokens: int) -> ArRequest:
    made = ArRequest(name, SamplingParams(max_tokens=max_tokens), set())
    made.prompt = plain_prompt([1] * length)
    return made


class Stage:
    """A scheduler with its tables, run as a worker would: every step gives one token to each of its requests."""

    def __init__(self, rows: int, blocks: int, budget: int) -> None:
        self.rows, self.blocks = RowTable(rows), BlockPool(blocks)
        self.scheduler = Scheduler(self.rows, self.blocks, SIZE, budget, conditioned=False)
        self.admitted: list[str] = []

    def add(self, made: ArRequest) -> None:
        self.scheduler.check(made, MODEL_LEN, "text")
        self.scheduler.add(made)

    def step(self) -> StepPlan | None:
        plan = self.scheduler.plan()
        if plan is None:
            return None
        self.admitted += [r.id for r in plan.prefills]
        for r in plan.requests:
            r.scheduled += 1
            if r.scheduled == r.max_tokens:
                self.leave(r)
        return plan

    def leave(self, made: ArRequest) -> None:
        self.scheduler.remove(made)
        if made.row is not None:
            self.rows.retire(made.row)
            self.rows.release(made.row)
            self.blocks.release(made.blocks.tolist())


SHAPES = st.lists(st.tuples(st.integers(1, MODEL_LEN - 1), st.integers(1, MODEL_LEN)), min_size=1, max_size=12)


@given(SHAPES, st.integers(1, 4), st.integers(10, 25), st.integers(1, 50))
def test_every_request_runs_first_come_first_served_within_budget(
    shapes: list[tuple[int, int]], rows: int, blocks: int, budget: int
):
    stage = Stage(rows, blocks, budget)
    requests = [request(str(index), *shape) for index, shape in enumerate(shapes)]
    for made in requests:
        stage.add(made)
    while plan := stage.step():
        lengths = [r.prompt.length for r in plan.prefills if r.prompt is not None]
        assert len(lengths) == 1 or sum(lengths) <= budget
        assert len(plan.requests) <= rows
        assert len(set(map(id, plan.requests))) == len(plan.requests)
    assert stage.admitted == [made.id for made in requests]
    assert all(
        r.scheduled == min(r.max_tokens, MODEL_LEN - shape[0]) for r, shape in zip(requests, shapes, strict=True)
    )
    assert stage.rows.used == stage.blocks.used == 0


@given(SHAPES, st.data())
def test_a_request_that_leaves_early_lets_the_others_run(shapes: list[tuple[int, int]], data: st.DataObject):
    stage = Stage(2, 12, 30)
    left = [request(str(index), *shape) for index, shape in enumerate(shapes)]
    for made in left:
        stage.add(made)
    while True:
        quitter = data.draw(st.sampled_from([None, *left]))
        if quitter is not None and quitter.scheduled < quitter.max_tokens:
            stage.leave(quitter)
            quitter.scheduled = quitter.max_tokens
        plan = stage.step()
        if plan is None:
            break
        assert quitter not in plan.requests
    assert all(made.scheduled == made.max_tokens for made in left)
    assert stage.rows.used == stage.blocks.used == 0


def test_blocks_are_set_aside_for_the_longest_output():
    stage = Stage(rows=3, blocks=5, budget=100)
    for name in "ab":
        stage.add(request(name, 5, 6))  # 11 tokens: 3 blocks of 4
    plan = stage.step()
    assert plan is not None
    assert [r.id for r in plan.prefills] == ["a"]
    assert stage.blocks.used == 3


def test_a_large_request_at_the_head_is_not_overtaken():
    stage = Stage(rows=3, blocks=6, budget=100)
    for name, length in (("running", 8), ("large", 16), ("small", 1)):
        stage.add(request(name, length, 4))
    while stage.step():
        pass
    assert stage.admitted == ["running", "large", "small"]


@pytest.mark.parametrize(
    ("length", "max_tokens", "message"),
    [
        (0, 1, "prompt: is empty; give at least one token"),
        (
            40,
            1,
            "prompt: has 40 tokens, and text takes 40 with at least one generated; shorten it or raise text.max_model_len",
        ),
        (20, 9, "sampling.text.max_tokens: prompt and output of 29 tokens need 8 blocks, and text has 7"),
        (20, 99, "sampling.text.max_tokens: prompt and output of 40 tokens need 10 blocks, and text has 7"),
    ],
)
def test_what_can_never_run_is_refused_with_the_numbers(length: int, max_tokens: int, message: str):
    stage = Stage(rows=1, blocks=7, budget=100)
    with pytest.raises(InputError) as caught:
        stage.scheduler.check(request("r", length, max_tokens), MODEL_LEN, "text")
    assert message in str(caught.value)


def test_a_prompt_may_leave_room_for_one_token():
    stage = Stage(rows=1, blocks=10, budget=100)
    made = request("r", MODEL_LEN - 1, 30)
    stage.add(made)
    assert made.max_tokens == 1
    assert stage.step() is not None
    assert stage.step() is None
