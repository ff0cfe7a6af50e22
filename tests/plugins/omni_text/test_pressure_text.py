"""Text models under pressure: tokens are those of transformers, whatever the budget, the pool and the cache."""

import itertools
import random

import pytest

from tests.support.tiers import SLOW, chosen, few
from tests.support.tiny_text import PENALTY, PROMPTS, TOKENS, TextEngine, TextRecorder, TextReference

SIZE = 4
BUDGETS = {
    "any budget": {},
    "budget 7": {"text.max_num_batched_tokens": 7},
    "budget 1": {"text.max_num_batched_tokens": 1},
}
CACHES = {"cached": {}, "not cached": {"text.prefix_cache": False}}
POOLS = {"any pool": {}, "few blocks": {"text.num_blocks": 16}}


@pytest.fixture(scope="module", params=["tied", "moe"])
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TextReference:
    return TextReference(tmp_path_factory.mktemp(request.param), request.param)


def test_the_reference_is_not_degenerate(reference: TextReference) -> None:
    answers = [reference.answer(index, 1.0) for index in range(8)]
    assert sum(len(set(tokens)) for tokens in answers) > 5 * len(answers)
    assert len({tuple(tokens) for tokens in answers}) == len(answers)
    assert all(tokens != reference.answer(index, PENALTY) for index, tokens in enumerate(answers) if index > 1)


def penalty(index: int) -> float:
    return PENALTY if index % 2 else 1.0


def submit(stage: TextEngine, name: str, index: int) -> TextRecorder:
    return stage.submit(name, PROMPTS[index], max_tokens=TOKENS, repetition_penalty=penalty(index))


@pytest.mark.parametrize(
    ("budget", "cache", "pool"),
    chosen(
        [("budget 7", "cached", "few blocks"), ("any budget", "not cached", "any pool")],
        itertools.product(BUDGETS, CACHES, POOLS),
    ),
)
def test_parity_under_pressure_and_again(reference: TextReference, budget: str, cache: str, pool: str) -> None:
    """Joined one by one; the second round, in reverse, finds what the first left."""
    stage = TextEngine(reference.folder, {"text.block_size": SIZE, **BUDGETS[budget], **CACHES[cache], **POOLS[pool]})
    spent = []
    for turn in range(2):
        recorders = {}
        for index in sorted(range(len(PROMPTS)), reverse=turn > 0):
            recorders[index] = submit(stage, f"{turn}.{index}", index)
            stage.tick()
        stage.run()
        for index, recorder in recorders.items():
            assert recorder.tokens == reference.answer(index, penalty(index))
        spent.append(dict(stage.engine.counters()["text"]))

    first, both = spent
    assert (both["preemptions"] > 0) == (pool == "few blocks")
    assert (both["cached_tokens"] > 0) == (cache == "cached")
    if cache == "cached" and pool == "any pool":
        hit = both["cached_tokens"] - first["cached_tokens"]
        assert hit == sum((len(prompt) - 1) // SIZE * SIZE for prompt in PROMPTS)
        assert both["prefill_tokens"] - first["prefill_tokens"] == sum(map(len, PROMPTS)) - hit


@pytest.mark.parametrize("seed", few(1, range(3), SLOW))
def test_parity_of_those_that_stay_while_others_leave(reference: TextReference, seed: int) -> None:
    chance = random.Random(seed)
    stage = TextEngine(
        reference.folder,
        {"text.block_size": SIZE, "text.num_blocks": 18, "text.max_num_seqs": 5, "text.max_num_batched_tokens": 7},
    )
    asked = [chance.randrange(len(PROMPTS)) for _ in range(24)]
    due = [chance.randrange(60) for _ in asked]
    leaving = {number: due[number] + chance.randrange(40) for number in chance.sample(range(len(asked)), 10)}
    recorders: dict[int, TextRecorder] = {}
    tick = 0
    while len(recorders) < len(asked) or tick <= max(leaving.values()) or not stage.engine.idle:
        for number, index in enumerate(asked):
            if due[number] == tick:
                recorders[number] = submit(stage, str(number), index)
            if leaving.get(number) == tick:
                stage.leave(str(number))
        stage.tick()
        tick += 1

    stayed = 0
    for number, index in enumerate(asked):
        recorder, answer = recorders[number], reference.answer(index, penalty(index))
        if number in leaving:
            assert recorder.tokens == answer[: len(recorder.tokens)]
        else:
            assert recorder.tokens == answer
            stayed += 1
    assert stayed == 14
    assert stage.engine.counters()["text"]["preemptions"] > 0
