"""Text models under pressure: tokens are those of transformers, whatever the budget, the pool and the cache."""

import itertools

import pytest

from tests.support.tiers import chosen
from tests.support.tiny_text import PENALTY, PROMPTS, TOKENS, TextEngine, TextReference

SIZE = 4
BUDGETS = {
    "any budget": {},
    "budget 7": {"text.max_num_batched_tokens": 7},
    "budget 1": {"text.max_num_batched_tokens": 1},
}
CACHES = {"cached": {}, "not cached": {"text.prefix_cache": False}}
POOLS = {"any pool": {}, "few blocks": {"text.num_blocks": 16}}


@pytest.fixture(scope="module", params=["tied", "moe", "window"])
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TextReference:
    return TextReference(tmp_path_factory.mktemp(request.param), request.param)


def test_the_reference_is_not_degenerate(reference: TextReference) -> None:
    answers = [reference.answer(index, 1.0) for index in range(8)]
    assert sum(len(set(tokens)) for tokens in answers) > 5 * len(answers)
    assert len({tuple(tokens) for tokens in answers}) == len(answers)
    assert all(tokens != reference.answer(index, PENALTY) for index, tokens in enumerate(answers) if index > 1)


def penalty(index: int) -> float:
    return PENALTY if index % 2 else 1.0


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
            asked = {"max_tokens": TOKENS, "repetition_penalty": penalty(index)}
            recorders[index] = stage.submit(f"{turn}.{index}", PROMPTS[index], **asked)
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
