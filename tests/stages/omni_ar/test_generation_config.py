"""Sampling defaults of generation_config.json: tokens and logits equal those of transformers with the same file."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from omni.errors import CheckpointError, ConfigError
from omni.sampling import GREEDY, SamplingParams
from omni_ar.generation_config import code_sampling_defaults, sampling_defaults
from tests.support.sampler_bench import reference_warp
from tests.support.tiny_text import PROMPTS, TOKENS, VOCAB, TextEngine, TextReference

SAMPLED = {"do_sample": True}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> TextReference:
    return TextReference(tmp_path_factory.mktemp("published"), "untied")


def engine(reference: TextReference, folder: Path, generation: dict[str, Any]) -> TextEngine:
    """On the checkpoint with another generation_config.json."""
    for file in reference.folder.iterdir():
        if file.name != "generation_config.json":
            (folder / file.name).symlink_to(file)
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return TextEngine(folder)


def edits(tokens: list[int]) -> dict[str, dict[str, Any]]:
    """Files that change the greedy answer `tokens`, which without them is as long as it may be."""
    end = tokens[3]
    return {
        "nothing": {},
        "suppressed": {"suppress_tokens": [tokens[0], tokens[5], VOCAB + 7, -1]},
        "bad words": {"bad_words_ids": [[tokens[1]], tokens[3:5], [PROMPTS[5][-1], tokens[0]]]},
        "an end among bad words": {"bad_words_ids": [[end], [tokens[1]]], "eos_token_id": [end]},
        "not too early": {"min_new_tokens": 9, "eos_token_id": [end, tokens[6]]},
        "least without an end": {"min_new_tokens": 9, "eos_token_id": None},
        "few tokens": {"max_new_tokens": 5, "max_length": 1000},
        "biases": {"sequence_bias": [[[tokens[0]], -7.5], [[tokens[0] + 1], 3.0]]},
        "all of them": {
            "repetition_penalty": 1.2,
            "suppress_tokens": [tokens[2]],
            "bad_words_ids": [tokens[:2]],
            "min_new_tokens": 7,
            "max_new_tokens": 11,
            "eos_token_id": end,
        },
    }


@pytest.mark.parametrize("name", edits([0] * TOKENS))
def test_greedy_tokens_are_those_of_transformers(reference, tmp_path, name, caplog):
    tokens = reference.answer(5)
    generation = {"eos_token_id": None, "max_new_tokens": TOKENS} | edits(tokens)[name]
    ids = torch.tensor([PROMPTS[5]])
    config = GenerationConfig.from_dict(generation | {"pad_token_id": VOCAB, "do_sample": False})
    out = reference.model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    expected = out[0, ids.shape[1] :].tolist()
    assert (expected == tokens) == (name in ("nothing", "least without an end"))

    caplog.clear()
    stage = engine(reference, tmp_path, generation)
    recorder = stage.submit("r", PROMPTS[5])
    stage.run()

    assert recorder.tokens == expected
    assert "generation_config" not in caplog.text


@pytest.mark.parametrize(
    "generation",
    [
        {},
        {"min_p": 0.2, "top_k": 0},
        {"temperature": 0.6, "min_p": 0.05, "top_k": 30, "top_p": 0.9},
        {"temperature": None, "top_k": None, "top_p": None, "min_p": None},
    ],
)
def test_the_distribution_is_that_of_transformers(reference, generation):
    """A field that is null is as one that is not there."""
    config, _ = reference.model._prepare_generation_config(GenerationConfig.from_dict(SAMPLED | generation))
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(1))
    expected = reference.model._get_logits_processor(config, 3)(torch.tensor([[1, 2, 3]]), logits)
    published = sampling_defaults(SAMPLED | generation, None, VOCAB)
    assert torch.equal(reference_warp(logits[0], published), expected[0])


def test_without_sampling_nothing_is_drawn() -> None:
    published = sampling_defaults({"temperature": 0.7, "min_p": 0.3, "top_k": 5, "top_p": 0.5}, None, VOCAB)
    assert published == GREEDY


def test_stop_strings_are_texts_that_end() -> None:
    for stops in ("end", ["end"]):
        assert sampling_defaults({"stop_strings": stops}, None, VOCAB).stop == ("end",)


def warnings(generation: dict[str, Any], caplog: pytest.LogCaptureFixture, end: int | None = 3) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        sampling_defaults(generation, end, VOCAB)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("generation", "said"),
    [
        ({"no_repeat_ngram_size": 3, "num_beams": 4}, "no_repeat_ngram_size = 3, num_beams = 4"),
        ({"begin_suppress_tokens": [1]}, "begin_suppress_tokens = [1]"),
        ({"guidance_scale": 1.5}, "guidance_scale = 1.5"),
        (SAMPLED | {"typical_p": 0.9, "eta_cutoff": 0.1}, "typical_p = 0.9, eta_cutoff = 0.1"),
        ({"min_length": 9}, "min_length = 9"),
        ({"max_length": 99}, "max_length = 99"),
        ({"sequence_bias": [[[1, 2], 3.0]]}, "sequence_bias = [[[1, 2], 3.0]]"),
        ({"sequence_bias": [[[1], 300.0]]}, "sequence_bias = [[[1], 300.0]]"),
        ({"sequence_bias": [[[1], 3.0]], "repetition_penalty": 1.1}, "sequence_bias = [[[1], 3.0]]"),
    ],
)
def test_unsupported_fields_are_logged_once(
    generation: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    logged = warnings(generation, caplog)
    assert [line.rpartition("transformers': ")[2] for line in logged] == [said]
    assert logged[0].startswith("generation_config.json: not supported, so results differ")


@pytest.mark.parametrize(
    "generation",
    [
        {"no_repeat_ngram_size": 0, "num_beams": 1, "guidance_scale": None, "use_cache": False, "pad_token_id": 1},
        {"typical_p": 0.9, "top_h": 0.4},
        SAMPLED | {"typical_p": 1.0, "epsilon_cutoff": 0.0},
        {"max_length": 99, "max_new_tokens": 9},
        {"max_length": 20, "min_length": 0},
        {"min_length": 9, "min_new_tokens": 4},
        {"min_length": 9, "eos_token_id": None},
    ],
)
def test_fields_without_effect_are_not_logged(generation: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    assert warnings(generation, caplog) == []


@pytest.mark.parametrize(
    ("generation", "message"),
    [
        ({"suppress_tokens": "all"}, r"suppress_tokens: Expected `array`"),
        ({"bad_words_ids": [[1], ["no"]]}, r"bad_words_ids\[1\]\[0\]: Expected `int`"),
        ({"bad_words_ids": [[1], []]}, r"bad_words_ids: .* is out of range"),
        ({"bad_words_ids": [[1, VOCAB]]}, rf"bad_words_ids: {VOCAB} is not in the vocabulary"),
        ({"sequence_bias": [[[VOCAB], 1.0]]}, rf"sequence_bias: {VOCAB} is not in the vocabulary"),
        ({"eos_token_id": VOCAB}, rf"eos_token_id: {VOCAB} is not in the vocabulary"),
        ({"max_new_tokens": 0}, r"max_new_tokens: 0 is out of range"),
        ({"min_new_tokens": 5000}, r"min_new_tokens: 5000 is more than max_tokens, 1024"),
        (SAMPLED | {"min_p": 1.5}, r"min_p: 1.5 is out of range"),
    ],
)
def test_an_invalid_parameter_is_named_as_in_the_file(generation: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=rf"^generation_config\.json: {message}"):
        sampling_defaults(generation, 3, VOCAB)


def test_codes_have_draws_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    generation = {"do_sample": False, "deep_do_sample": True, "deep_temperature": 0.8, "deep_top_p": 0.7}
    expected = SamplingParams(code_temperature=0.8, code_top_k=50, code_top_p=0.7)
    assert code_sampling_defaults(generation, "deep_") == expected
    assert caplog.text == ""
    assert code_sampling_defaults(generation | {"deep_min_p": 0.1, "deep_max_new_tokens": 3}, "deep_") == expected
    assert caplog.text.rstrip().endswith("transformers': deep_min_p = 0.1")
    with pytest.raises(CheckpointError, match=r"^generation_config\.json: deep_top_p: 2\.0 is out of range"):
        code_sampling_defaults(generation | {"deep_top_p": 2.0}, "deep_")


def test_few_tokens_may_be_asked_for_where_more_are_published(reference: TextReference, tmp_path: Path) -> None:
    stage = engine(reference, tmp_path, {"min_new_tokens": 9, "eos_token_id": [VOCAB - 1]})
    recorder = stage.submit("r", PROMPTS[5], max_tokens=4)
    stage.run()
    assert recorder.tokens == reference.answer(5)[:4]


def test_too_many_default_bad_words_are_refused_at_the_start(reference: TextReference, tmp_path: Path) -> None:
    words = [[first, second] for first in range(20) for second in range(20)]
    with pytest.raises(ConfigError, match=r"^text\.sampling\.bad_words_ids: are 400 words; use at most 256 words"):
        engine(reference, tmp_path, {"bad_words_ids": words})


@pytest.mark.parametrize(
    ("end", "problem"), [("x", "Expected `int"), (-1, r"\(-1,\) is out of range"), (VOCAB, "is not in")]
)
def test_a_wrong_end_is_named_where_it_stands(end: object, problem: str) -> None:
    with pytest.raises(CheckpointError, match=f"^config.json: eos_token_id: .*{problem}"):
        sampling_defaults({}, end, VOCAB)
