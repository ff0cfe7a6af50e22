"""Heads for multi-token prediction: drafts as those of a reference that recomputes every entry, and refusals."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from omni.errors import CheckpointError, ConfigError
from omni_ar.drafters import CacheShape, DraftSetup, FeatureShape
from omni_ar.drafters.mtp import MtpDrafter, MtpHead
from omni_ar.layers.text_model import TextModel
from tests.stages.omni_ar.head_rows import HeadRows, move_later_drafts
from tests.support.small_text import SmallText
from tests.support.tiny_heads import MtpReference, add_mtp, setup_of, write_stage


def drafter_of(setup: DraftSetup, **args: Any) -> MtpDrafter:
    with torch.inference_mode():
        return MtpDrafter(args, setup)


def rows_of(
    stage: Path, head: dict[str, torch.Tensor], setup: DraftSetup, drafter: MtpDrafter, seed: int = 0
) -> HeadRows:
    weights, config = load_file(stage / "model.safetensors"), json.loads((stage / "config.json").read_text())
    embedding_VD = weights["model.embed_tokens.weight"]
    output_VD = embedding_VD if config["tie_word_embeddings"] else weights["lm_head.weight"]
    reference = MtpReference(head, config, embedding_VD, output_VD)
    width = config["hidden_size"]
    return HeadRows(drafter, reference, vocab=setup.vocab_size, width=width, drafts=setup.drafts, seed=seed)


@pytest.mark.parametrize("seed", range(8))
def test_drafts_are_those_of_all_entries_in_one_piece(seed: int, tmp_path: Path):
    """In chunked prompts, beside decode rows, and after steps that accept 0 to K drafts; the head's layer is dense or has experts,
    and the stage's embeddings are tied to its output matrix or not."""
    experts, tied = seed % 4 > 1, bool(seed % 2)
    stage = write_stage(tmp_path / "stage", seed, layers=2, experts=experts, tie_word_embeddings=tied)
    head = add_mtp(stage, seed, dense=not experts or seed == 7)
    setup = setup_of(stage, drafts=1 + seed % 4)
    drafter = drafter_of(setup)
    with torch.inference_mode():
        rows_of(stage, head, setup, drafter, seed).run(10)


def test_a_head_sees_all_tokens_where_the_stage_has_a_window(tmp_path: Path):
    windows: dict[str, Any] = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0}
    stage = write_stage(tmp_path / "stage", layers=2, **windows)
    head, setup = add_mtp(stage, prefix="draft."), setup_of(stage)
    drafter = drafter_of(setup, prefix="draft.")
    with torch.inference_mode():
        rows_of(stage, head, setup, drafter).run(6)


def test_mtp_reads_final_states_and_owns_only_its_weights(tmp_path: Path):
    stage = write_stage(tmp_path / "stage", layers=3, hidden_size=48)
    head = add_mtp(stage)
    drafter = drafter_of(setup_of(stage))
    assert drafter.feature_shape == FeatureShape(layers=(3,), width=48)
    config = json.loads((stage / "config.json").read_text())
    heads, size = config["num_key_value_heads"], config["head_dim"]
    assert drafter.cache_shape == CacheShape(num_layers=1, num_kv_heads=heads, head_dim=size)
    assert drafter.weight_bytes == 4 * sum(each.numel() for each in head.values())


@pytest.mark.parametrize("dense", [True, False])
def test_a_pass_reads_the_output_matrix_and_the_chosen_experts(dense: bool, tmp_path: Path):
    stage = write_stage(tmp_path / "stage", layers=2, experts=True, tie_word_embeddings=False)
    head, setup = add_mtp(stage, dense=dense), setup_of(stage)
    config = json.loads((stage / "config.json").read_text())
    weights, output = drafter_of(setup).pass_weights, setup.vocab_size * config["hidden_size"]
    experts = sum(each.numel() for name, each in head.items() if ".experts." in name)
    others = sum(each.numel() for each in head.values()) - experts + output
    assert weights.layers > 1
    for tokens in (1, 3):
        used = 1 - (1 - config["num_experts_per_tok"] / config["num_local_experts"]) ** tokens
        assert weights.read(tokens) == pytest.approx(4 * (others + used * experts))
    assert bool(experts) is not dense


ROTARY: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": 70.0},
    {
        "rope_type": "llama3",
        "rope_theta": 70.0,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
]


@pytest.mark.parametrize("rotary", ROTARY, ids=lambda rotary: rotary["rope_type"])
def test_rotary_positions_are_those_of_the_stage(rotary: dict[str, Any], tmp_path: Path):
    stage = write_stage(tmp_path / "stage", layers=2, rope_parameters=rotary)
    add_mtp(stage)
    setup = setup_of(stage)
    model, positions_PT = setup.model, torch.arange(200)[None]
    assert isinstance(model, TextModel)
    head = drafter_of(setup)._model
    assert isinstance(head, MtpHead)
    for one, other in zip(
        head.rotary(positions_PT, torch.float32), model.decoder.rotary(positions_PT, torch.float32), strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("experts", "dense"), [(False, ()), (True, ()), (True, (0,)), (True, (1,))])
def test_a_head_with_random_weights_is_like_the_last_layer(experts: bool, dense: tuple[int, ...], tmp_path: Path):
    """Without any in the checkpoint; the layer is as the stage's last one. dense: layers of a stage with experts that have none."""
    more: dict[str, Any] = {"mlp_only_layers": list(dense)} if experts else {}
    stage = write_stage(tmp_path / "stage", layers=2, experts=experts, **more)
    setup = setup_of(stage, load_format="dummy")
    first, second = (drafter_of(setup)._model.state_dict() for _ in range(2))
    assert ("layers.0.mlp.experts_down" in first) is (experts and 1 not in dense)
    assert all(torch.equal(first[name], second[name]) for name in second)
    assert 0 < float(first["fc.weight"].std()) < 0.1


def _second_layer(weights: dict[str, torch.Tensor]) -> None:
    weights["mtp.layers.1.mlp.up_proj.weight"] = weights["mtp.layers.0.mlp.up_proj.weight"].clone()


REFUSED: list[tuple[Any, str]] = [
    (lambda weights: weights.pop("mtp.fc.weight"), "text.drafter: mtp.fc.weight: is not among the weights in "),
    (lambda weights: weights.pop("mtp.norm.weight"), "has no weights for 1 parameters of the model: norm.weight"),
    (
        lambda weights: weights.pop("mtp.pre_fc_norm_hidden.weight"),
        "1 parameters of the model: pre_fc_norm_hidden.weight",
    ),
    (
        lambda weights: weights.pop("mtp.layers.0.self_attn.q_norm.weight"),
        "of the model: layers.0.self_attn.q_norm.weight",
    ),
    (
        lambda weights: weights.update({"mtp.fc.weight": torch.zeros(48, 48)}),
        "mtp.fc.weight: wrong tensor shape: expected",
    ),
    (
        lambda weights: weights.update({"mtp.embed_tokens.weight": torch.zeros(9, 9)}),
        "embed_tokens.weight: is unexpected",
    ),
    (_second_layer, "mtp.layers.1.mlp.up_proj.weight: belongs to a second layer; use a checkpoint whose head has one"),
]


@pytest.mark.parametrize(("change", "said"), REFUSED)
def test_refused_at_start(change: Any, said: str, tmp_path: Path):
    stage = write_stage(tmp_path / "stage", layers=2, hidden_size=48)
    add_mtp(stage)
    file = stage / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(CheckpointError) as caught:
        drafter_of(setup_of(stage))
    assert said in str(caught.value)
    assert str(caught.value).startswith("text.drafter: "), "the stage's own model is not at fault"


def test_refused_for_a_stage_without_a_head_or_with_other_layers(tmp_path: Path):
    setup = setup_of(write_stage(tmp_path / "stage", layers=2))
    with pytest.raises(
        CheckpointError, match=r"mtp\.fc\.weight: .* this checkpoint has no head for multi-token predict"
    ):
        drafter_of(setup)
    with pytest.raises(ConfigError, match=r"text\.drafter: is 'mtp', and SmallText is not a `TextModel`"):
        drafter_of(replace(setup, model=SmallText()))


# The comparison notices faults of the head.


def _no_shift(drafter: MtpDrafter) -> None:
    drafter._shift = 0


def _no_norm(name: str) -> Any:
    def without(drafter: MtpDrafter) -> None:
        module = drafter._model.get_submodule(name)
        module.forward = lambda x: x
        module.add = lambda x, delta: (x + delta, x)  # type: ignore[assignment]

    return without


def _hidden_first(drafter: MtpDrafter) -> None:
    weight = drafter._model.get_submodule("fc").weight
    assert isinstance(weight, torch.Tensor)
    weight.copy_(torch.cat(weight.chunk(2, 1)[::-1], 1))


FAULTS = [
    _no_shift,
    move_later_drafts,
    *map(_no_norm, ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")),
    _hidden_first,
]


@pytest.mark.plants_faults
@pytest.mark.parametrize("number", range(len(FAULTS)))
def test_a_planted_fault_is_noticed(number: int, tmp_path: Path):
    stage = write_stage(tmp_path / "stage", layers=2)
    head, setup = add_mtp(stage), setup_of(stage)
    drafter = drafter_of(setup)
    with torch.inference_mode():
        FAULTS[number](drafter)
        with pytest.raises(AssertionError):
            rows_of(stage, head, setup, drafter).run(6)
