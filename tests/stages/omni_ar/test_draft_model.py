"""A whole model as a drafter: what it proposes, and models that a stage refuses."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from omni.checkpoint import Checkpoint
from omni.errors import ConfigError
from omni.stage import module_bytes
from omni_ar.drafters import CacheShape, DraftSetup
from omni_ar.drafters.draft_model import ArDraftModel, model_drafter
from omni_ar.model import ArModel, ArShape, ExpertShape
from tests.stages.omni_ar.small_drafts import MODEL, Shaped, draft_setup
from tests.support.small_codec import SmallCodec


def load(model: ArModel, **changes: Any) -> Any:
    """changes: of the stage's setup."""
    setup: DraftSetup = replace(draft_setup(MODEL, 3), **changes)
    return model_drafter(model, setup.context.checkpoint, setup)


class PlainCodec(SmallCodec):
    """A model of codec frames whose prompts and steps are those of a text model."""

    @property
    def shape(self) -> ArShape:
        return replace(super().shape, step_columns=(), step_width=0, prompt_columns=("ids",))


OTHER_INPUTS: list[ArModel] = [
    PlainCodec(codes=11),
    Shaped(step_columns=("text",)),
    Shaped(step_width=4),
    Shaped(prompt_columns=("ids", "audio")),
    Shaped(position_axes=3),
]


@pytest.mark.parametrize("model", OTHER_INPUTS)
def test_a_model_with_other_inputs_than_token_ids_is_refused(model: ArModel):
    with pytest.raises(
        ConfigError, match=r"text\.drafter_args\.model: .* is not a plain model of text; use a model of te"
    ):
        load(model)


def test_a_model_has_positions_for_all_tokens_of_a_request():
    load(MODEL, max_model_len=160)
    with pytest.raises(
        ConfigError, match=r"has 160 positions, and a request up to 161 tokens; lower text.max_model_len"
    ):
        load(MODEL, max_model_len=161)


@pytest.mark.parametrize("vocab_size", [10, 12])
def test_without_tables_of_ids_their_numbers_are_compared(vocab_size: int):
    with pytest.raises(
        ConfigError, match=rf"has 11 token ids, and stage 'text' has {vocab_size}; use a model with the"
    ):
        load(MODEL, vocab_size=vocab_size)


def with_files(folder: Path, files: Mapping[str, object]) -> Checkpoint:
    folder.mkdir()
    for name, content in {"config.json": {}, **files}.items():
        (folder / name).write_text(json.dumps(content))
    return Checkpoint(folder)


TABLES: dict[str, dict[str, object]] = {
    "table": {"vocab.json": {"a": 0, "b": 1}},
    "whole": {"tokenizer.json": {"model": {"vocab": {"a": 0, "b": 1}}}, "vocab.json": {"c": 0}},
    "other": {"tokenizer.json": {"model": {"vocab": {"a": 1, "b": 0}}}},
    "more": {"vocab.json": {"a": 0, "b": 1, "c": 2}},
}
NO_TABLES: dict[str, dict[str, object]] = {
    "none": {},
    "a list": {"tokenizer.json": {"model": {"vocab": [["a", -1.0], ["b", -2.0]]}}},
    "no ids": {"tokenizer.json": {"model": {"vocab": {"a": "0", "b": "1"}}}},
    "no model": {"tokenizer.json": {"version": "1.0"}, "vocab.json": {"c": 0}},
    "no vocabulary": {"tokenizer.json": {"model": {"type": "BPE"}}},
}


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("without", NO_TABLES)
def test_a_table_of_one_tokenizer_alone_is_not_compared(without: str, swapped: bool, tmp_path: Path):
    """Neither are those that are no tables."""
    folders = [with_files(tmp_path / name, (TABLES | NO_TABLES)[name]) for name in ("table", without)]
    stage, other = folders[::-1] if swapped else folders
    setup = draft_setup(MODEL, 3)
    setup = replace(setup, context=replace(setup.context, checkpoint=stage))
    model_drafter(MODEL, other, setup)
    with pytest.raises(ConfigError, match="has 11 token ids, and stage 'text' has 12"):
        model_drafter(MODEL, other, replace(setup, vocab_size=12))


@pytest.mark.parametrize(
    ("stage", "other", "said"),
    [
        ("table", "whole", None),
        ("whole", "table", None),
        ("table", "other", "'a' has id 1 and id 0"),
        ("other", "table", "'a' has id 0 and id 1"),
        ("table", "more", "'c' has id 2 and no id"),
        ("more", "whole", "'c' has no id and id 2"),
    ],
)
def test_tables_of_both_tokenizers_are_compared(stage: str, other: str, said: str | None, tmp_path: Path):
    """Whatever the numbers of ids are: sizes of a family pad a vocabulary differently."""
    own, theirs = (with_files(tmp_path / name, TABLES[name]) for name in (stage, other))
    setup = draft_setup(MODEL, 3)
    setup = replace(setup, vocab_size=12, context=replace(setup.context, checkpoint=own))
    if said is None:
        model_drafter(MODEL, theirs, setup)
    else:
        with pytest.raises(ConfigError, match=rf"the tokenizer of .* differs from that of stage 'text': {said}; use a"):
            model_drafter(MODEL, theirs, setup)


def test_ids_that_the_stage_lacks_are_never_proposed():
    """They pad the model's vocabulary further than the stage's."""
    hidden_RD = torch.randn(200, MODEL.shape.hidden_width, generator=torch.Generator().manual_seed(0))
    logits_RV = MODEL.logits(hidden_RD)
    assert (logits_RV.argmax(1) >= 7).any()
    proposed_R = ArDraftModel(MODEL, 7).propose(hidden_RD)
    assert torch.equal(proposed_R, logits_RV[:, :7].argmax(1))


def test_a_pass_reads_the_experts_that_are_chosen():
    experts = ExpertShape(8, 2, 3.0)
    dense, mixed = (load(model).pass_weights for model in (Shaped(), Shaped(experts=experts)))
    assert dense.read(1) == dense.read(4) == module_bytes(MODEL)
    assert mixed.read(1) == module_bytes(MODEL) * (1 + 3 / 4) / 4
    assert mixed.layers == dense.layers > MODEL.shape.num_layers


def test_a_model_has_pages_for_its_layers():
    shape = MODEL.shape
    expected = CacheShape(num_layers=shape.num_layers, num_kv_heads=shape.num_kv_heads, head_dim=shape.head_dim)
    assert load(MODEL).cache_shape == expected
