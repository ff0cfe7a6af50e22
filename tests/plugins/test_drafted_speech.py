"""A thinker with a drafter: text and speech are those without drafts, and the talker gets accepted tokens only."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from omni import Omni, Result, SamplingParams
from tests.support.reference import tiny_checkpoint
from tests.support.tiers import SLOW, few
from tests.support.tiny_drafters import drafting_model
from tests.support.tiny_omni import TOLERANCE, tiny_plugins
from tests.support.tiny_qwen2_5_omni import tiny_folder

pytestmark = pytest.mark.thorough

FOLDERS = {"qwen3_omni": tiny_checkpoint, "qwen2_5_omni": tiny_folder}
QUESTIONS = ["hello there hello there", "what is a circle, what is a circle", "tell me more"]
TEXT = {"greedy": SamplingParams(temperature=0.0, max_tokens=40), "drawn": SamplingParams(seed=3, max_tokens=40)}
DRAFTERS: Mapping[str, Mapping[str, object]] = {
    "draft_model": {"drafter": "draft_model", "draft_tokens": 3, "adaptive_drafts": False},
    "fabricated": {"drafter": "fabricated", "draft_tokens": 4, "drafter_args": {"rate": 0.7}},
    "ngram": {"drafter": "ngram", "draft_tokens": 3, "drafter_args": {"fewest": 1}, "adaptive_drafts": False},
}
PRESSURE: Mapping[str, Mapping[str, object]] = {
    "calm": {},
    "ahead, chunked": {"max_in_flight": 5, "max_num_batched_tokens": 40, "max_num_seqs": 2},
}


def spoken(omni: Omni, text: str) -> list[Result]:
    sampling = {stage: SamplingParams(seed=7) for stage in omni.pipeline.sampling_stages}
    sampling |= {"thinker": TEXT[text], "talker": SamplingParams(seed=7, max_tokens=25)}
    results = omni.generate(QUESTIONS, sampling=sampling, stream=False)
    assert isinstance(results, list)
    return results


def opened(folder: Path, settings: Mapping[str, object]) -> Omni:
    overrides = {f"thinker.{name}": value for name, value in settings.items()}
    return Omni(folder, device="cpu", dtype="float32", overrides=overrides, plugins=tiny_plugins())


@cache
def plain(family: str, text: str) -> list[Result]:
    with opened(FOLDERS[family](), {}) as omni:
        return spoken(omni, text)


CASES = [
    ("qwen3_omni", "fabricated", "drawn", "ahead, chunked"),
    ("qwen2_5_omni", "fabricated", "greedy", "calm"),
    ("qwen3_omni", "draft_model", "greedy", "ahead, chunked"),
]
ALL = [(family, drafter, text, way) for family in FOLDERS for drafter in DRAFTERS for text in TEXT for way in PRESSURE]


@pytest.mark.parametrize(("family", "drafter", "text", "pressure"), few(1, dict.fromkeys([*CASES, *ALL]), SLOW))
def test_speech_is_that_without_drafts(family: str, drafter: str, text: str, pressure: str, tmp_path: Path) -> None:
    settings = {**DRAFTERS[drafter], **PRESSURE[pressure]}
    if drafter == "draft_model":
        settings["drafter_args"] = {"model": str(drafting_model(FOLDERS[family](), tmp_path))}
    with opened(FOLDERS[family](), settings) as omni:
        # The second time the future is known.
        answers = [spoken(omni, text) for _ in range(2)]
        counters = omni.counters()["thinker"]
    for results in answers:
        for got, wanted in zip(results, plain(family, text), strict=True):
            assert got.text == wanted.text
            assert got.audio is not None
            assert wanted.audio is not None
            assert got.audio.shape == wanted.audio.shape
            assert (got.audio - wanted.audio).abs().max() <= TOLERANCE * wanted.audio.abs().max()
    assert counters["drafted_tokens"] > 0
    if drafter == "fabricated":
        assert counters["accepted_drafts"] > 20
