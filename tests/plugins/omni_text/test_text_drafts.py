"""Drafters from the settings to the answer, on a tiny checkpoint with a tokenizer."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen3Config, Qwen3ForCausalLM

from omni import ConfigError, Omni, OmniError, SamplingParams
from omni.cli.display import summary
from tests.support.tiny_drafters import drafting_model
from tests.support.tiny_text import write_chat_model

QUESTIONS = ["hello", "the blue square and the green one, what is in the picture"]
SAMPLING = [
    SamplingParams(max_tokens=40, temperature=0.0),
    SamplingParams(max_tokens=40, temperature=0.9, seed=4, logprobs=2),
]
SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
TOLD = {"text.drafter": "fabricated", "text.drafter_args": {"rate": 0.9}, "text.draft_tokens": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("drafts") / "model")


def drafting(folder: Path) -> dict[str, object]:
    """Settings of a drafter whose model is nearly that of the stage."""
    args = {"model": str(drafting_model(folder, folder.parent))}
    return {"text.drafter": "draft_model", "text.drafter_args": args, "text.draft_tokens": 4}


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("drafter", ["fabricated", "draft_model"])
def test_answers_are_those_without_drafts(folder: Path, drafter: str, graphs: bool):
    with Omni(folder, device="cpu") as omni:
        plain = [omni.generate(QUESTIONS, sampling=sampling, stream=False) for sampling in SAMPLING]
    settings = TOLD if drafter == "fabricated" else drafting(folder)
    with Omni(folder, device="cpu", overrides={**settings, "engine.graphs": graphs}) as omni:
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
    assert accepted > drafts / (2 if drafter == "fabricated" else 5)
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
        (
            {"text.drafter": "gram"},
            r"text.drafter: 'gram' is no drafter; known are draft_model, eagle3, fabricated, mtp, ngram",
        ),
        ({"text.drafter": "ngram", "text.draft_tokens": 0}, r"draft_tokens must be at least 1, at most 15"),
        ({"text.drafter": "ngram", "text.drafter_args": {"size": 3}}, r"text.drafter_args: .*unknown field `size`"),
    ],
)
def test_refused_settings(folder: Path, settings: dict[str, object], said: str):
    with pytest.raises(ConfigError, match=said):
        Omni(folder, device="cpu", overrides=settings)


def changed(folder: Path, to: Path, **fields: object) -> str:
    """A copy of the drafter's checkpoint with other fields of config.json."""
    shutil.copytree(drafting_model(folder, folder.parent), to)
    config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps(config | fields))
    return str(to)


def refused(folder: Path, model: str) -> str:
    given = {"text.drafter": "draft_model", "text.drafter_args": {"model": model}}
    with pytest.raises(OmniError) as caught:
        Omni(folder, device="cpu", overrides=given)
    return str(caught.value)


def test_a_model_that_cannot_draft_is_refused_by_name(folder: Path, tmp_path: Path):
    field = "text.drafter_args.model: "
    other = changed(folder, tmp_path / "other", model_type="llama")
    assert refused(folder, other) == f"{field}{other} has model_type 'llama'; use a model of qwen3 or qwen3_moe"
    short = changed(folder, tmp_path / "short", max_position_embeddings=20)
    assert f"{field}{short} has 20 positions, and a request up to " in refused(folder, short)
    assert "there is no folder" in refused(folder, str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match=r"text.drafter_args: .*`model`"):
        Omni(folder, device="cpu", overrides={"text.drafter": "draft_model"})


def test_a_model_of_another_vocabulary_is_refused(folder: Path, tmp_path: Path):
    other = changed(folder, tmp_path / "other")
    tokenizer = tmp_path / "other" / "vocab.json"
    vocabulary = json.loads(tokenizer.read_text())
    first, second = sorted(vocabulary)[:2]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    tokenizer.write_text(json.dumps(vocabulary))
    said = refused(folder, other)
    assert (
        f"text.drafter_args.model: the tokenizer of {other} differs from that of stage 'text': {first!r} has id" in said
    )
    small = tmp_path / "small"
    Qwen3ForCausalLM(Qwen3Config(**SMALL)).save_pretrained(small)
    assert f"{small} has 64 token ids, and stage 'text' has " in refused(folder, str(small))
