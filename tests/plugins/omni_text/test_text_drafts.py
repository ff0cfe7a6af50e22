"""Drafters from the settings to the answer, on a tiny checkpoint with a tokenizer."""

from pathlib import Path

import pytest

from omni import ConfigError, Omni, SamplingParams
from omni.cli.display import summary
from tests.support.tiny_text import write_chat_model

QUESTIONS = ["hello", "the blue square and the green one, what is in the picture"]
SAMPLING = [
    SamplingParams(max_tokens=40, temperature=0.0),
    SamplingParams(max_tokens=40, temperature=0.9, seed=4, logprobs=2),
]
TOLD = {"text.drafter": "fabricated", "text.drafter_args": {"rate": 0.9}, "text.draft_tokens": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("drafts") / "model")


@pytest.mark.parametrize("graphs", [False, True])
def test_answers_are_those_without_drafts(folder: Path, graphs: bool):
    with Omni(folder, device="cpu") as omni:
        plain = [omni.generate(QUESTIONS, sampling=sampling, stream=False) for sampling in SAMPLING]
    with Omni(folder, device="cpu", overrides={**TOLD, "engine.graphs": graphs}) as omni:
        for _ in range(2):
            drafted = [omni.generate(QUESTIONS, sampling=sampling, stream=False) for sampling in SAMPLING]
        counters = omni.counters()["text"]
    for one, other in zip(plain, drafted, strict=True):
        assert [result.text for result in other] == [result.text for result in one]
        assert [result.tokens for result in other] == [result.tokens for result in one]
        assert [[each.id for each in r.logprobs or ()] for r in other] == [
            [each.id for each in r.logprobs or ()] for r in one
        ]
    assert counters["accepted_drafts"] == sum(counters[f"accepted_drafts_{place}"] for place in range(1, 5))
    assert counters["drafted_tokens_1"] >= counters["drafted_tokens_4"] > 0
    metrics = drafted[0][0].metrics
    counts = metrics.stages["text"].counts
    steps, drafts, accepted = (counts[name] for name in ("drafted_steps", "drafted_tokens", "accepted_drafts"))
    assert 0 < steps < drafts
    assert accepted > drafts / 2
    line = f", {1 + accepted / steps:.2f} tokens per step with drafts ({accepted} of {drafts} accepted)"
    assert summary(metrics).endswith(line)
    assert "drafts" not in summary(plain[0][0].metrics)


def test_rows_are_derived_with_room_for_drafts(folder: Path):
    with Omni(folder, device="cpu", overrides={"text.drafter": "ngram", "text.max_num_seqs": None}) as omni:
        (result,) = omni.generate(QUESTIONS[:1], sampling=SAMPLING[0], stream=False)
    assert result.tokens


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"text.drafter": "gram"}, r"'gram' is no drafter; known are draft_model, eagle3, fabricated, mtp, ngram;"),
        ({"text.drafter": "ngram", "text.draft_tokens": 0}, r"draft_tokens must be at least 1, at most 15"),
        ({"text.drafter": "ngram", "text.drafter_args": {"size": 3}}, r"text.drafter_args: .*unknown field `size`"),
    ],
)
def test_refused_settings(folder: Path, settings: dict[str, object], said: str):
    with pytest.raises(ConfigError, match=said):
        Omni(folder, device="cpu", overrides=settings)
