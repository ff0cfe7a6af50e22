"""Heads by the settings of a stage: text, and a thinker's text and speech, are those without drafts."""

from pathlib import Path
from typing import Any

import pytest

from omni import Omni, Result, SamplingParams
from omni.checkpoint import Checkpoint
from tests.support.reference import tiny_checkpoint
from tests.support.tiny_heads import add_mtp, eagle3_head, write_stage
from tests.support.tiny_omni import TOLERANCE, tiny_plugins
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


def spoken(settings: dict[str, Any]) -> tuple[list[Result], int]:
    overrides = {f"thinker.{name}": value for name, value in settings.items()}
    with Omni(tiny_checkpoint(), device="cpu", dtype="float32", overrides=overrides, plugins=tiny_plugins()) as omni:
        sampling = {stage: SamplingParams(seed=7) for stage in omni.pipeline.sampling_stages}
        sampling |= {"thinker": SamplingParams(seed=3, max_tokens=20), "talker": SamplingParams(seed=7, max_tokens=12)}
        results = omni.generate(["hello there", "what is a circle"], sampling=sampling, stream=False)
        assert isinstance(results, list)
        return results, omni.counters()["thinker"].get("drafted_tokens", 0)


@pytest.mark.thorough
def test_speech_is_that_without_drafts(tmp_path: Path):
    thinker = Checkpoint(tiny_checkpoint()).config["thinker_config"]["text_config"]
    layers = thinker["num_hidden_layers"]
    head = eagle3_head(thinker, states=1).write(tmp_path / "head")
    args = {"model": str(head), "layers": [layers - 1]}
    plain, _ = spoken({})
    results, drafted = spoken({"drafter": "eagle3", "drafter_args": args, "adaptive_drafts": False})
    assert drafted > 20
    for got, wanted in zip(results, plain, strict=True):
        assert got.text == wanted.text
        assert got.audio is not None
        assert wanted.audio is not None
        assert got.audio.shape == wanted.audio.shape
        assert (got.audio - wanted.audio).abs().max() <= TOLERANCE * wanted.audio.abs().max()
