"""EAGLE-3 heads: drafts as those of a reference that recomputes every entry, and refusals."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from omni.errors import CheckpointError, ConfigError
from omni_ar.drafters import DraftSetup, FeatureShape
from omni_ar.drafters.eagle3 import Eagle3Drafter
from tests.stages.omni_ar.eagle3_rows import drafter_of, rows_of
from tests.stages.omni_ar.head_rows import move_later_drafts
from tests.support.tiny_heads import eagle3_head, setup_of, write_stage


@pytest.mark.parametrize("seed", range(6))
def test_drafts_are_those_of_all_entries_in_one_piece(seed: int, tmp_path: Path):
    """In chunked prompts, beside decode rows, and after steps that accept 0 to K drafts."""
    stage = write_stage(tmp_path / "stage", seed)
    head = eagle3_head(stage, seed, norm_before_residual=bool(seed % 2))
    setup = setup_of(stage, drafts=1 + seed % 4)
    drafter = drafter_of(head.write(tmp_path / "head"), setup)
    with torch.inference_mode():
        rows_of(stage, head, setup, drafter, seed).run(10)


VARIANTS: dict[str, dict[str, Any]] = {
    "a window": {"sliding_window": 5, "layer_types": ["sliding_attention"]},
    "a window of the stage's": {"sliding_window": 5, "use_sliding_window": True},
    "own width, embeddings and vocabulary": {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2},
    "one hidden state": {"states": 1, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [4]}},
    "the stage's output matrix": {"draft_size": 97},
    "its embeddings as output matrix": {"hidden_size": 32, "num_attention_heads": 2, "draft_size": 97},
    "scaled frequencies": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 1.0,  # a scale of 1
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_a_head(variant: str, tmp_path: Path):
    stage = write_stage(tmp_path / "stage", 3, tie_word_embeddings=False)
    head = eagle3_head(stage, 5, **VARIANTS[variant])
    if "output matrix" in variant:
        del head.weights["lm_head.weight"]
        head.config["tie_word_embeddings"] = "its" in variant
    setup = setup_of(stage)
    drafter = drafter_of(head.write(tmp_path / "head"), setup)
    with torch.inference_mode():
        rows_of(stage, head, setup, drafter).run(6)


def test_rows_that_have_ended_or_soon_end_keep_their_pages(tmp_path: Path):
    stage = write_stage(tmp_path / "stage")
    head, setup = eagle3_head(stage), setup_of(stage)
    drafter = drafter_of(head.write(tmp_path / "head"), setup)
    with torch.inference_mode():
        rows = rows_of(stage, head, setup, drafter)
        rows.run(2)
        rows.stop(1)
        rows.limit(2, 2)
        before, newest = [rows.pages(row) for row in (1, 2)], rows.newest(2)
        drafter.draft(rows.rows([0, 1, 2]))
        assert rows.proposed_N.tolist() == [3, 0, 3]
        assert torch.equal(rows.pages(1), before[0])
        written = (rows.pages(2) != before[1]).any(1).nonzero().flatten().tolist()
        # Entry n is of the first draft: a row ends behind the next token.
        assert max(written) == newest


def test_the_stages_weights_are_not_the_heads(tmp_path: Path):
    stage = write_stage(tmp_path / "stage")
    head = eagle3_head(stage)
    drafter = drafter_of(head.write(tmp_path / "head"), setup_of(stage))
    held = sum(each.numel() for name, each in head.weights.items() if name != "t2d" and name != "d2t")
    assert drafter.weight_bytes == 4 * held + 8 * 61


@pytest.mark.parametrize("width", [32, 48])
@pytest.mark.parametrize("own_output", [True, False])
def test_a_pass_reads_an_output_matrix_and_no_embeddings(width: int, own_output: bool, tmp_path: Path):
    """Of the head or of the stage."""
    stage = write_stage(tmp_path / "stage", hidden_size=32)
    vocab = json.loads((stage / "config.json").read_text())["vocab_size"]
    head = eagle3_head(stage, draft_size=61 if own_output or width != 32 else vocab, hidden_size=width)
    if not own_output and width == 32:
        del head.weights["lm_head.weight"]
    drafter = drafter_of(head.write(tmp_path / "head"), setup_of(stage))
    left_out = ("t2d", "d2t", "embed_tokens.weight")
    read = sum(each.numel() for name, each in head.weights.items() if name not in left_out)
    table = 8 * 61 if "d2t" in head.weights else 0
    borrowed = 0 if "lm_head.weight" in head.weights else vocab * 32
    assert drafter.pass_weights.read(5) == 4 * (read + borrowed) + table


def test_a_head_with_random_weights_drafts(tmp_path: Path):
    """No weights are read, equal starts have equal weights, and there is a draft for each row."""
    stage = write_stage(tmp_path / "stage")
    head = eagle3_head(stage)
    folder = head.write(tmp_path / "head")
    (folder / "model.safetensors").unlink()
    setup = setup_of(stage, load_format="dummy")
    first, second = (drafter_of(folder, setup)._model.state_dict() for _ in range(2))
    assert {name: tuple(each.shape) for name, each in first.items()}["lm_head.weight"] == (
        61,
        first["norm.weight"].shape[0],
    )
    assert all(torch.equal(first[name], second[name]) for name in second)
    assert 0 < float(first["fc.weight"].std()) < 0.1


def _drop(name: str) -> Any:
    return lambda head: head.weights.pop(name)


def _set(**fields: Any) -> Any:
    return lambda head: head.config.update(fields)


def _put(name: str, weight: torch.Tensor) -> Any:
    return lambda head: head.weights.update({name: weight})


FIELD = "text.drafter_args.model"
REFUSED: list[tuple[Any, str]] = [
    (_set(vocab_size=98), f"{FIELD}: has a vocabulary of 98 ids, and the stage one of 97; use a head"),
    (_set(target_hidden_size=64), f"{FIELD}: reads hidden states of width 64, and those of the stage have 48"),
    (_set(hidden_size=36), f"{FIELD}: reads hidden states of width 36, and those of the stage have 48"),
    (
        _set(hidden_size=36, target_hidden_size=48),
        f"{FIELD}: has no embedding table and a width of 36, and the stage's has 48",
    ),
    (
        _set(eagle_aux_hidden_state_layer_ids=[1, 4, 8]),
        "eagle_aux_hidden_state_layer_ids: selects hidden states [1, 4, 8]",
    ),
    (
        _set(eagle_aux_hidden_state_layer_ids=[4, 4, 5]),
        "selects hidden states [4, 4, 5] of a stage of 8 layers; give asc",
    ),
    (
        _set(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 4, 7]}),
        f"{FIELD}: config.json: eagle_config.eagle_aux_hidden_state_layer_ids: selects hidden states [2, 5, 8]",
    ),
    (_set(eagle_config={"use_aux_hidden_state": False}), "config.json: eagle_config.use_aux_hidden_state: is false"),
    (_set(fc_norm=True), f"{FIELD}: config.json: fc_norm: is True, which is not supported; use a head of the layout"),
    (_set(eagle_config={"norm_before_fc": True}), "config.json: eagle_config.norm_before_fc: is True, which is not"),
    (_set(model_type="deepseek_v3"), f"{FIELD}: config.json: model_type: 'deepseek_v3' is not supported"),
    (_set(num_hidden_layers=2), f"{FIELD}: config.json: num_hidden_layers: is 2, not 1, which alone is supported"),
    (_set(hidden_act="gelu"), f"{FIELD}: config.json: hidden_act: 'gelu' is not supported"),
    (_set(draft_vocab_size=98), f"{FIELD}: config.json: draft_vocab_size: is 98, above vocab_size, 97"),
    (_set(rope_scaling={"rope_type": "yarn", "factor": 2.0}), "rope_type: 'yarn' is not supported"),
    (lambda head: head.config.pop("hidden_size"), f"{FIELD}: config.json: hidden_size: is missing"),
    (_drop("fc.weight"), "has no weights for 1 parameters of the model: fc.weight"),
    (_drop("midlayer.hidden_norm.weight"), "has no weights for 1 parameters of the model: midlayer.hidden_norm.weight"),
    (
        _drop("midlayer.self_attn.k_proj.weight"),
        "has no weights for 1 parameters of the model: midlayer.self_attn.k_proj",
    ),
    (_drop("lm_head.weight"), f"{FIELD}: lm_head.weight: is missing, and the head has 61 of 97 ids"),
    (_drop("d2t"), f"{FIELD}: d2t: is missing, and the head has 61 of 97 ids"),
    (_put("d2t", torch.full((61,), 37)), f"{FIELD}: d2t: maps id 60 to 97, out of range, 0 to 96"),
    (_put("d2t", torch.zeros(60, dtype=torch.int64)), f"{FIELD}: d2t: is [60] of torch.int64, not 61 whole numbers"),
    (
        _put("fc.weight", torch.zeros(48, 96)),
        f"{FIELD}: fc.weight: wrong tensor shape: expected (48, 144), found (48, 96)",
    ),
    (
        _put("layers.1.mlp.up_proj.weight", torch.zeros(2, 2)),
        "layers.1.mlp.up_proj.weight: is not a weight of a supported",
    ),
    (_put("midlayer.self_attn.q_norm.weight", torch.ones(8)), "q_norm.weight: is unexpected: the model has no param"),
]


@pytest.fixture(scope="module")
def fitting(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, DraftSetup]:
    """A stage of width 48."""
    stage = write_stage(tmp_path_factory.mktemp("stage"), hidden_size=48)
    return stage, setup_of(stage)


@pytest.mark.parametrize(("change", "said"), REFUSED)
def test_refused_at_start(change: Any, said: str, fitting: tuple[Path, DraftSetup], tmp_path: Path):
    stage, setup = fitting
    head = eagle3_head(stage)
    change(head)
    with pytest.raises((ConfigError, CheckpointError)) as caught:
        drafter_of(head.write(tmp_path / "head"), setup)
    assert said in str(caught.value)


def test_a_stage_of_few_layers_needs_numbers(tmp_path: Path):
    stage = write_stage(tmp_path / "stage", layers=5, hidden_size=24)
    folder = eagle3_head(stage).write(tmp_path / "head")
    with pytest.raises(
        CheckpointError, match=r"selects hidden states \[2, 2, 2\] of a stage of 5 layers; give ascending"
    ):
        drafter_of(folder, setup_of(stage))
    with pytest.raises(CheckpointError, match=r"text\.drafter_args\.layers: selects hidden states \[1, 2, 5\]"):
        drafter_of(folder, setup_of(stage), layers=[1, 2, 5])
    with pytest.raises(ConfigError, match=r"text\.drafter_args\.layers: are 2 hidden states, and the head reads 3"):
        drafter_of(folder, setup_of(stage), layers=[1, 2])
    assert drafter_of(folder, setup_of(stage), layers=[1, 2, 4]).feature_shape == FeatureShape(
        layers=(1, 2, 4), width=24
    )


def test_a_wrong_width_is_refused_as_such_with_layers_given(tmp_path: Path):
    stage = write_stage(tmp_path / "stage", hidden_size=48)
    head = eagle3_head(stage)
    head.config["target_hidden_size"] = 96
    with pytest.raises(ConfigError, match=r"text\.drafter_args\.model: reads hidden states of width 96, and those of"):
        drafter_of(head.write(tmp_path / "head"), setup_of(stage), layers=[1, 2])


def test_a_folder_that_is_not_there_and_other_arguments(tmp_path: Path):
    setup = setup_of(write_stage(tmp_path / "stage"))
    with pytest.raises(CheckpointError, match=r"text\.drafter_args\.model: there is no folder /nowhere"):
        drafter_of(Path("/nowhere"), setup)
    with pytest.raises(msgspec.ValidationError, match="missing required field `model`"):
        Eagle3Drafter({}, setup)


# The comparison notices faults of the head.


def _no_shift(drafter: Eagle3Drafter) -> None:
    drafter._shift = 0


def _no_norm(name: str) -> Any:
    def without(drafter: Eagle3Drafter) -> None:
        module = drafter._model.get_submodule(name)
        module.forward = lambda x: x

    return without


def _offsets_as_ids(drafter: Eagle3Drafter) -> None:
    targets_V = drafter._model.targets_V
    assert isinstance(targets_V, torch.Tensor)
    targets_V -= torch.arange(targets_V.shape[0])


def _hidden_first(drafter: Eagle3Drafter) -> None:
    weight = drafter._model.get_submodule("midlayer.self_attn.qkv_proj").weight
    assert isinstance(weight, torch.Tensor)
    weight.copy_(torch.cat(weight.chunk(2, 1)[::-1], 1))


def _normed_features(drafter: Eagle3Drafter) -> None:
    """The next draft's features are behind the final norm."""
    model, run = drafter._model, drafter._model.forward
    norm = model.get_submodule("norm")
    model.forward = lambda *args: norm(run(*args))  # type: ignore[method-assign]


FAULTS = [
    _no_shift,
    move_later_drafts,
    *map(_no_norm, ("midlayer.hidden_norm", "midlayer.input_layernorm", "norm")),
    _offsets_as_ids,
    _hidden_first,
    _normed_features,
]


@pytest.mark.plants_faults
@pytest.mark.parametrize("number", range(len(FAULTS)))
def test_a_planted_fault_is_noticed(number: int, tmp_path: Path):
    stage = write_stage(tmp_path / "stage")
    head, setup = eagle3_head(stage), setup_of(stage)
    drafter = drafter_of(head.write(tmp_path / "head"), setup)
    with torch.inference_mode():
        FAULTS[number](drafter)
        with pytest.raises(AssertionError):
            rows_of(stage, head, setup, drafter).run(6)
