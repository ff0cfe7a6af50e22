"""EAGLE-3 heads for a model whose vocabulary is padded otherwise than that of the stage, and heads with other ids."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from omni.errors import CheckpointError, ConfigError
from omni_ar.drafters import DraftSetup
from tests.stages.omni_ar.eagle3_rows import drafter_of, rows_of
from tests.support.tiny_heads import TinyHead, eagle3_head, setup_of, write_stage

STAGE, SMALLER, LARGER, TOKENS = 97, 93, 101, 90
"""Ids of the stage, of a head that is padded less, of one that is padded further, and of the tokenizer."""
FIELD = r"text\.drafter_args\.model: "
OWN_WIDTH = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
"""A head with embeddings of its own."""


def table(count: int, first: str = "t0") -> dict[str, int]:
    return {first if index == 0 else f"t{index}": index for index in range(count)}


def add_table(folder: Path, ids: dict[str, int], *, whole: bool = False) -> Path:
    name, content = ("tokenizer.json", {"model": {"vocab": ids}}) if whole else ("vocab.json", ids)
    (folder / name).write_text(json.dumps(content))
    return folder


def head_of(stage: Path, vocab_size: int, **more: Any) -> TinyHead:
    """A head that was trained for a model with that many ids."""
    return eagle3_head(json.loads((stage / "config.json").read_text()) | {"vocab_size": vocab_size}, 5, **more)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_stage(tmp_path_factory.mktemp("stage"), 3, hidden_size=48, vocab_size=STAGE)
    return add_table(folder, table(TOKENS))


@pytest.fixture(scope="module")
def setup(stage: Path) -> DraftSetup:
    return setup_of(stage)


@pytest.mark.parametrize("more", [{}, OWN_WIDTH, {"draft_size": SMALLER}, {"draft_size": SMALLER, **OWN_WIDTH}])
def test_drafts_of_a_head_that_is_padded_less(more: Any, stage: Path, setup: DraftSetup, tmp_path: Path):
    """As those of all entries in one piece, also in rows with ids that the head lacks."""
    head = head_of(stage, SMALLER, **more)
    drafter = drafter_of(head.write(tmp_path / "head"), setup)
    with torch.inference_mode():
        rows = rows_of(stage, head, setup, drafter)
        rows.ids_NT[:, 2::5] = STAGE - 1
        rows.run(6)


@pytest.mark.parametrize("own", [False, True])
def test_without_an_output_matrix_the_stages_has_all_its_ids(own: bool, stage: Path, setup: DraftSetup, tmp_path: Path):
    head = head_of(stage, SMALLER, draft_size=SMALLER, **(OWN_WIDTH if own else {}))
    del head.weights["lm_head.weight"]
    head.config["tie_word_embeddings"] = own
    drafter = drafter_of(head.write(tmp_path / "head"), setup)
    hidden_RD = torch.randn(300, head.config["hidden_size"], generator=torch.Generator().manual_seed(1))
    assert (int(drafter._model.propose(hidden_RD).max()) < SMALLER) is own


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("vocab_size", [SMALLER, LARGER])
def test_the_tokenizer_of_a_head_is_compared(
    vocab_size: int, pickled: bool, stage: Path, setup: DraftSetup, tmp_path: Path
):
    """As that of a draft model, whatever the numbers of ids are."""
    head = head_of(stage, vocab_size, draft_size=vocab_size)
    folder = add_table(head.write(tmp_path / "head"), table(TOKENS), whole=True)
    if pickled:
        (folder / "model.safetensors").unlink()
        torch.save(head.weights, folder / "pytorch_model.bin")
    propose = drafter_of(folder, setup)._model.propose
    proposed_R = propose(torch.randn(300, 48, generator=torch.Generator().manual_seed(1)))
    assert STAGE - 10 < int(proposed_R.max()) < STAGE
    add_table(folder, table(TOKENS, "other"), whole=True)
    with pytest.raises(ConfigError, match=FIELD + r"the tokenizer of .* stage 'text': 'other' has id 0 and no id; use"):
        drafter_of(folder, setup)


def test_a_tokenizer_is_compared_for_equal_numbers_of_ids_too(stage: Path, setup: DraftSetup, tmp_path: Path):
    folder = add_table(head_of(stage, STAGE).write(tmp_path / "head"), table(TOKENS - 1))
    with pytest.raises(ConfigError, match=FIELD + r"the tokenizer of .* stage 'text': 't89' has no id and id 89; use"):
        drafter_of(folder, setup)


TRAINED = r"; use a head that was trained for the model of stage 'text'"
REFUSED = [
    (TOKENS - 1, TOKENS, rf"has a vocabulary of 89 ids, and the stage one of 97, .* those up to 89{TRAINED}"),
    (LARGER, TOKENS, rf"has a vocabulary of 101 ids, and the stage one of 97{TRAINED}"),
    (SMALLER, None, rf"has a vocabulary of 93 ids, and the stage one of 97{TRAINED}"),
    (SMALLER, 0, rf"has a vocabulary of 93 ids, and the stage one of 97{TRAINED}"),
]


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
@pytest.mark.parametrize(("vocab_size", "tokens", "said"), REFUSED)
def test_refused_without_a_tokenizer_of_the_head(
    vocab_size: int, tokens: int | None, said: str, load_format: str, tmp_path: Path
):
    """Further ids may be those of another vocabulary, and without a tokenizer of the stage so may all."""
    stage = write_stage(tmp_path / "stage", hidden_size=48, vocab_size=STAGE)
    if tokens is not None:
        add_table(stage, table(tokens))
    with pytest.raises(ConfigError, match=FIELD + said):
        drafter_of(head_of(stage, vocab_size).write(tmp_path / "head"), setup_of(stage, load_format=load_format))


def test_the_last_id_of_the_tokenizer_is_enough(stage: Path, setup: DraftSetup, tmp_path: Path):
    assert drafter_of(head_of(stage, TOKENS).write(tmp_path / "head"), setup).weight_bytes > 0


def test_drafts_are_ids_of_both_vocabularies(stage: Path, setup: DraftSetup, tmp_path: Path):
    head = head_of(stage, LARGER)
    folder = add_table(head.write(tmp_path / "head"), table(TOKENS))
    offsets_V = head.weights["d2t"].zero_()
    offsets_V[-1] = STAGE - 1 - 60
    assert drafter_of(head.write(folder), setup).weight_bytes > 0
    offsets_V[-1] = STAGE - 60
    with pytest.raises(CheckpointError, match=FIELD + r"d2t: maps id 60 to 97, out of range, 0 to 96"):
        drafter_of(head.write(folder), setup)
