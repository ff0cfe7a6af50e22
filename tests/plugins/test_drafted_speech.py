"""A thinker with a drafter: text and speech are those without drafts, and the talker gets accepted tokens only."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from omni import Omni, Result, SamplingParams
from tests.plugins.speaking_heads import DRAFTED, write_eagle3, write_mtp
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
    "eagle3": {"drafter": "eagle3", "draft_tokens": 3, "adaptive_drafts": False},
    "mtp": {"drafter": "mtp", "draft_tokens": 2, "adaptive_drafts": False},
}
HEADS = ("eagle3", "mtp")
PRESSURE: Mapping[str, Mapping[str, object]] = {
    "calm": {},
    "ahead, chunked": {"max_in_flight": 5, "max_num_batched_tokens": 40, "max_num_seqs": 2},
}


def spoken(omni: Omni, text: str, ids: tuple[int, ...] | None) -> list[Result]:
    """ids: of the text; None for all."""
    sampling = {stage: SamplingParams(seed=7) for stage in omni.pipeline.sampling_stages}
    thinker = replace(TEXT[text], allowed_token_ids=ids)
    sampling |= {"thinker": thinker, "talker": SamplingParams(seed=7, max_tokens=25)}
    results = omni.generate(QUESTIONS, sampling=sampling, stream=False)
    assert isinstance(results, list)
    return results


def opened(folder: Path, settings: Mapping[str, object]) -> Omni:
    overrides = {f"thinker.{name}": value for name, value in settings.items()}
    return Omni(folder, device="cpu", dtype="float32", overrides=overrides, plugins=tiny_plugins())


@cache
def plain(family: str, text: str, ids: tuple[int, ...] | None) -> list[Result]:
    with opened(FOLDERS[family](), {}) as omni:
        return spoken(omni, text, ids)


CASES = [
    ("qwen3_omni", "fabricated", "drawn", "ahead, chunked"),
    ("qwen3_omni", "eagle3", "drawn", "ahead, chunked"),
    ("qwen3_omni", "mtp", "drawn", "calm"),
    ("qwen2_5_omni", "eagle3", "greedy", "calm"),
    ("qwen2_5_omni", "mtp", "drawn", "ahead, chunked"),
]
ALL = [(family, drafter, text, way) for family in FOLDERS for drafter in DRAFTERS for text in TEXT for way in PRESSURE]


@pytest.mark.parametrize(("family", "drafter", "text", "pressure"), few(5, dict.fromkeys([*CASES, *ALL]), SLOW))
def test_speech_is_that_without_drafts(family: str, drafter: str, text: str, pressure: str, tmp_path: Path) -> None:
    folder, settings = FOLDERS[family](), {**DRAFTERS[drafter], **PRESSURE[pressure]}
    wanted_ids = DRAFTED if drafter in HEADS else None
    if drafter == "draft_model":
        settings["drafter_args"] = {"model": str(drafting_model(folder, tmp_path))}
    if drafter == "eagle3":
        settings["drafter_args"] = write_eagle3(folder, tmp_path)
    if drafter == "mtp":
        folder = write_mtp(folder, tmp_path)
    with opened(folder, settings) as omni:
        # The second time the future is known, and blocks of the prompts are cached.
        answers = [spoken(omni, text, wanted_ids) for _ in range(2)]
        counters = omni.counters()["thinker"]
    for results in answers:
        for got, wanted in zip(results, plain(family, text, wanted_ids), strict=True):
            assert got.text == wanted.text
            assert got.audio is not None
            assert wanted.audio is not None
            assert got.audio.shape == wanted.audio.shape
            assert (got.audio - wanted.audio).abs().max() <= TOLERANCE * wanted.audio.abs().max()
    assert counters["drafted_tokens"] > 0
    if drafter == "fabricated":
        assert counters["accepted_drafts"] > 20
    if drafter in HEADS:
        assert 5 < counters["accepted_drafts"] < counters["drafted_tokens"]
