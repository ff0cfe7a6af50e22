"""Heads by the settings of a stage: its text is that without drafts."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_heads import add_mtp, eagle3_head, write_stage
from tests.support.tiny_text import TextEngine

PROMPT = [5, 6, 7, 5, 6, 7, 5]


def text_of(folder: Path, dtype: str = "float32", **settings: Any) -> tuple[list[int], dict[str, int]]:
    engine = TextEngine(folder, {f"text.{name}": value for name, value in settings.items()}, dtype=dtype)
    recorder = engine.submit("one", PROMPT, temperature=0.0, max_tokens=20, ignore_eos=True)
    engine.run()
    return recorder.tokens, dict(engine.engine.counters()["text"])


@pytest.mark.parametrize("kind", ["eagle3", "mtp"])
def test_text_is_that_without_drafts(kind: str, tmp_path: Path):
    stage = write_stage(tmp_path / "stage", 2)
    plain, _ = text_of(stage)
    add_mtp(stage)
    args = {"model": str(eagle3_head(stage).write(tmp_path / "head"))} if kind == "eagle3" else {}
    tokens, counters = text_of(stage, drafter=kind, drafter_args=args, draft_tokens=2, adaptive_drafts=False)
    assert tokens == plain
    assert counters["drafted_tokens"] > 20


@pytest.mark.parametrize("kind", ["eagle3", "mtp"])
def test_heads_draft_in_the_dtype_of_published_models(kind: str, tmp_path: Path):
    """The tokens of bfloat16 may differ in a close call."""
    stage = write_stage(tmp_path / "stage", 2)
    add_mtp(stage)
    args = {"model": str(eagle3_head(stage).write(tmp_path / "head"))} if kind == "eagle3" else {}
    tokens, counters = text_of(stage, "bfloat16", drafter=kind, drafter_args=args, adaptive_drafts=False)
    assert len(tokens) == 20
    assert counters["drafted_tokens"] > 20
