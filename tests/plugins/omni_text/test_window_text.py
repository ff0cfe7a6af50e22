"""A text model with windows: tokens are those of transformers, with small budgets, few blocks and a prefix cache."""

from pathlib import Path

import pytest

from tests.support.tiny_text import PROMPTS, TOKENS, TextEngine, TextReference

SIZE = 4


@pytest.mark.parametrize(
    ("settings", "preempts"),
    [({"text.num_blocks": 16, "text.max_num_batched_tokens": 7}, True), ({"text.prefix_cache": False}, False)],
    ids=["few blocks", "not cached"],
)
def test_tokens_equal_those_of_transformers(settings: dict[str, object], preempts: bool, tmp_path: Path) -> None:
    """Joined one by one; the second round, in reverse, finds the blocks of the first."""
    reference = TextReference(tmp_path, "window")
    stage = TextEngine(reference.folder, {"text.block_size": SIZE, **settings})
    for turn in range(2):
        recorders = {}
        for index in sorted(range(len(PROMPTS)), reverse=turn > 0):
            recorders[index] = stage.submit(f"{turn}.{index}", PROMPTS[index], max_tokens=TOKENS)
            stage.tick()
        stage.run()
        for index, recorder in recorders.items():
            assert recorder.tokens == reference.answer(index)
    counters = stage.engine.counters()["text"]
    assert (counters["preemptions"] > 0) == preempts
    assert (counters["cached_tokens"] > 0) == preempts
