"""Drafters from the settings to the answer, on a tiny checkpoint with a tokenizer."""

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from omni import ConfigError, Omni, Result, SamplingParams
from omni.cli.display import summary
from omni.errors import OmniError
from omni.timeline import read_trace
from omni.timeline.report import make_report
from omni.timeline.trace import steps_of
from omni.utils.draft_counts import DraftCounts
from tests.support.fake_hub import REPOSITORY, fetched, publish
from tests.support.tiers import SLOW, few
from tests.support.tiny_drafters import drafting_model
from tests.support.tiny_text import write_chat_model, write_noisy_model

QUESTIONS = ["hello", "the blue square and the green one, what is in the picture"]
SAMPLING = [
    SamplingParams(max_tokens=40, temperature=0.0),
    SamplingParams(max_tokens=40, temperature=0.9, seed=4, logprobs=2),
]
TOLD = {"text.drafter": "fabricated", "text.drafter_args": {"rate": 0.9}, "text.draft_tokens": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("drafts") / "model")


@pytest.mark.parametrize(
    ("drafter", "graphs"),
    few(2, [("draft_model", True), ("fabricated", False), ("draft_model", False), ("fabricated", True)], SLOW),
)
def test_answers_are_those_without_drafts(folder: Path, drafter: str, graphs: bool):
    with Omni(folder, device="cpu") as omni:
        plain = [omni.generate(QUESTIONS, sampling=sampling, stream=False) for sampling in SAMPLING]
    settings = TOLD
    if drafter == "draft_model":
        settings = {**drafting(drafting_model(folder, folder.parent)), "text.draft_tokens": 4}
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
    shares = " ".join(
        f"{counts[f'accepted_drafts_{place}'] / counts[f'drafted_tokens_{place}']:.0%}"
        for place in range(1, 5)
        if counts.get(f"drafted_tokens_{place}")
    )
    line = f", {1 + accepted / steps:.2f} tokens per step with drafts ({accepted} of {drafts} accepted, by position "
    assert summary(metrics).endswith(f"{line}{shares})")
    assert "drafts" not in summary(plain[0][0].metrics)


def test_requests_totals_and_the_timeline_count_the_same_drafts(folder: Path, tmp_path: Path):
    with Omni(folder, device="cpu", overrides=TOLD, timeline=tmp_path / "out.json") as omni:
        results = [each for _ in range(2) for each in omni.generate(QUESTIONS, sampling=SAMPLING[0], stream=False)]
        totals = DraftCounts.of(omni.counters()["text"])
    requests, steps, trace = DraftCounts(4), DraftCounts(4), read_trace(tmp_path / "out.json")
    for result in results:
        requests.merge(result.metrics.stages["text"].drafts)
    for step in steps_of(trace, "text"):
        counts = DraftCounts.of(step.numbers)
        assert counts.steps <= step.numbers["decodes"]
        steps.merge(counts)
    assert totals.numbers() == requests.numbers() == steps.numbers()
    assert len(set(totals.acceptance)) > 1
    (report,) = make_report(trace).drafts
    assert (report.steps, report.drafted, report.accepted) == (totals.steps, sum(totals.drafted), sum(totals.accepted))
    assert (report.acceptance, report.mean_length) == (totals.acceptance, totals.mean_length)


@pytest.mark.parametrize("ends", ["stop string", "stop id"])
def test_drafts_count_up_to_the_end_of_a_text(folder: Path, tmp_path: Path, ends: str):
    """The stage's own model drafts, and a token ends the text within the first step that verifies drafts."""

    def asked(omni: Omni, **given: object) -> Result:
        sampling = replace(SamplingParams(max_tokens=40, temperature=0.0), **given)
        return omni.generate(QUESTIONS[:1], sampling=sampling, stream=False)[0]

    with Omni(folder, device="cpu") as omni:
        plain = [asked(omni, max_tokens=most) for most in range(1, 9)]
    words = [after.text.removeprefix(before.text) for before, after in itertools.pairwise(plain)]
    place = next(
        n for n in range(3, 9) if words[n - 2].isascii() and words[n - 2] and words[n - 2] not in plain[n - 2].text
    )
    ended = plain[place - 1].tokens
    assert ended[-1] not in ended[:-1]
    stop = {"stop": (words[place - 2],)} if ends == "stop string" else {"stop_token_ids": ended[-1:]}
    settings = {**drafting(folder), "text.draft_tokens": 8, "engine.graphs": False}
    with Omni(folder, device="cpu", overrides=settings, timeline=tmp_path / "out.json") as omni:
        result = asked(omni, **stop)
        totals = DraftCounts.of(omni.counters()["text"])
    assert result.tokens == ended
    of_request, of_steps = result.metrics.stages["text"].drafts, DraftCounts()
    for step in steps_of(read_trace(tmp_path / "out.json"), "text"):
        of_steps.merge(DraftCounts.of(step.numbers))
    for counts in (totals, of_request, of_steps):
        assert (sum(counts.drafted), sum(counts.accepted), counts.mean_length) == (place - 2, place - 2, place - 1)


def test_derived_rows_include_memory_of_drafts(folder: Path):
    with Omni(folder, device="cpu", overrides={"text.drafter": "ngram", "text.max_num_seqs": None}) as omni:
        (result,) = omni.generate(QUESTIONS[:1], sampling=SAMPLING[0], stream=False)
    assert result.tokens


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"text.drafter_args": {}}, r"text.drafter_args: is given without a drafter"),
        ({"text.drafter": "gram"}, r"'gram' is not a drafter; known are draft_model, eagle3, fabricated, mtp, ngram;"),
        ({"text.drafter": "ngram", "text.draft_tokens": 0}, r"draft_tokens must be at least 1, at most 15"),
        ({"text.drafter": "ngram", "text.drafter_args": {"size": 3}}, r"text.drafter_args: .*unknown field `size`"),
        ({"text.drafter": "draft_model", "text.drafter_args": {"modell": "x"}}, r"text.drafter_args: .*field `modell`"),
    ],
)
def test_settings_that_do_not_fit_a_drafter_are_refused(folder: Path, settings: dict[str, object], said: str):
    with pytest.raises(ConfigError, match=said):
        Omni(folder, device="cpu", overrides=settings)


# A smaller model.


def other_model(folder: Path, other: Path) -> Path:
    write_noisy_model(folder, other)
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        shutil.copy(folder / name, other)
    return other


def change_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))


def cut_vocabulary(other: Path, size: int) -> None:
    change_json(other / "config.json", lambda config: config.update(vocab_size=size))
    weights = load_file(other / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = weights[name][:size].contiguous()
    save_file(weights, other / "model.safetensors", {"format": "pt"})


def drafting(other: Path) -> dict[str, object]:
    return {"text.drafter": "draft_model", "text.drafter_args": {"model": str(other)}, "text.adaptive_drafts": False}


def test_a_model_with_fewer_ids_than_the_stage(folder: Path, tmp_path: Path):
    """Both pad the same vocabulary, and the stage's padding is among the tokens."""
    other = other_model(folder, tmp_path / "other")
    tokens = len(json.loads((folder / "vocab.json").read_text()))
    cut_vocabulary(other, tokens + 20)
    biased = SamplingParams(max_tokens=20, temperature=0.9, seed=4, logit_bias={tokens + 60: 9.0})
    results = []
    for settings in ({}, drafting(other)):
        with Omni(folder, device="cpu", overrides=settings) as omni:
            results.append(omni.generate(QUESTIONS, sampling=biased, stream=False))
    assert [each.tokens for each in results[1]] == [each.tokens for each in results[0]]
    assert any(token >= tokens + 20 for each in results[0] for token in each.tokens)


def test_a_mixture_of_experts_drafts(folder: Path, tmp_path: Path):
    config = json.loads((folder / "config.json").read_text())
    sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")
    experts: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    experts["max_position_embeddings"] = 1024
    torch.manual_seed(0)
    Qwen3MoeForCausalLM(Qwen3MoeConfig(**{name: config[name] for name in sizes}, **experts)).save_pretrained(tmp_path)
    shutil.copy(folder / "vocab.json", tmp_path)
    found = []
    for settings in ({}, drafting(tmp_path)):
        with Omni(folder, device="cpu", overrides=settings) as omni:
            found.append(omni.generate(QUESTIONS, sampling=SAMPLING[0], stream=False))
            counters = omni.counters()["text"]
    assert [each.tokens for each in found[1]] == [each.tokens for each in found[0]]
    assert counters["drafted_tokens"] > 0


def test_random_weights_need_none_in_the_folder_of_the_model(folder: Path, tmp_path: Path):
    other = other_model(folder, tmp_path / "other")
    (other / "model.safetensors").unlink()
    with Omni(folder, device="cpu", load_format="dummy", overrides=drafting(other)) as omni:
        omni.generate(QUESTIONS[:1], sampling=SAMPLING[0], stream=False)
        assert omni.counters()["text"]["drafted_tokens"] > 0


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_a_model_on_the_hub_is_fetched(load_format: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With weights, unless they are random."""
    publish(other_model(folder, tmp_path / "other"), tmp_path / "cache", monkeypatch)
    settings = {"text.drafter": "draft_model", "text.drafter_args": {"model": REPOSITORY}}
    with Omni(folder, device="cpu", load_format=load_format, overrides=settings):
        assert ("model.safetensors" in fetched(tmp_path / "cache")) == (load_format == "auto")


def without_vocabulary(other: Path) -> None:
    (other / "vocab.json").unlink()
    cut_vocabulary(other, 600)


def renamed_token(other: Path) -> None:
    change_json(other / "vocab.json", lambda table: table.update(colour=table.pop("!")))


def whole_tokenizer(other: Path) -> None:
    """As large as a published one."""
    vocabulary = {f"t{token}": token for token in range(150_000)}
    model = {"type": "BPE", "vocab": vocabulary, "merges": [[token, "x"] for token in vocabulary]}
    (other / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))


REFUSED_MODELS: list[tuple[Callable[[Path], object], str]] = [
    (shutil.rmtree, "there is no folder"),
    (lambda other: (other / "model.safetensors").unlink(), "holds no weights"),
    (lambda other: change_json(other / "config.json", lambda c: c.update(model_type="llama")), "model_type 'llama'"),
    (lambda other: change_json(other / "config.json", lambda c: c.update(max_position_embeddings=64)), "64 positions"),
    (
        lambda other: change_json(
            other / "config.json", lambda c: c.update(quantization_config={"quant_method": "fp8"})
        ),
        "has a quantization_config, and quantized weights are not supported",
    ),
    (lambda other: cut_vocabulary(other, 100), "has 100 token ids, and its tokenizer has those up to "),
    (without_vocabulary, "has 600 token ids, and stage 'text' has 640"),
    (renamed_token, "differs from that of stage 'text': '!' has no id and id 0"),
    (whole_tokenizer, "differs from that of stage 'text': '!' has no id and id 0"),
]


@pytest.mark.parametrize(("change", "said"), REFUSED_MODELS)
def test_models_that_do_not_fit(folder: Path, change: Callable[[Path], object], said: str, tmp_path: Path):
    other = other_model(folder, tmp_path / "other")
    change(other)
    with pytest.raises(OmniError) as caught:
        Omni(folder, device="cpu", overrides=drafting(other))
    assert str(caught.value).startswith("text.drafter_args.model")
    assert said in str(caught.value)
