"""A family's tiny checkpoint has the form of transformers: its classes read every weight, and need no other."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    CsmForConditionalGeneration,
    Qwen2_5OmniForConditionalGeneration,
    Qwen3ForCausalLM,
    Qwen3OmniMoeForConditionalGeneration,
)

import omni_csm.tiny
import omni_qwen2_5_omni.tiny
import omni_qwen3_omni.tiny
import omni_text.tiny
from omni.errors import ConfigError
from omni.utils.quiet import quiet


@dataclass(frozen=True)
class Family:
    """names: of weights, from the index of the released model. timed: files that bear the time at which they were written."""

    write_tiny: Callable[..., None]
    model: Any
    model_type: str
    names: frozenset[str]
    timed: frozenset[str] = frozenset()


LAYER = "model.layers.0."
FAMILIES = {
    "text": Family(
        omni_text.tiny.write_tiny,
        Qwen3ForCausalLM,
        "qwen3",
        frozenset({"lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"})
        | {f"{LAYER}self_attn.{part}.weight" for part in ("k_norm", "k_proj", "o_proj", "q_norm", "q_proj", "v_proj")}
        | {f"{LAYER}mlp.{part}_proj.weight" for part in ("down", "gate", "up")}
        | {f"{LAYER}{part}_layernorm.weight" for part in ("input", "post_attention")},
    ),
    "csm": Family(omni_csm.tiny.write_tiny, CsmForConditionalGeneration, "csm", frozenset()),
    "qwen2_5_omni": Family(
        omni_qwen2_5_omni.tiny.write_tiny,
        Qwen2_5OmniForConditionalGeneration,
        "qwen2_5_omni",
        frozenset(
            {
                "thinker.model.embed_tokens.weight",
                "thinker.model.layers.0.self_attn.q_proj.bias",
                "thinker.audio_tower.conv1.weight",
                "thinker.visual.blocks.0.attn.q.weight",
                "thinker.lm_head.weight",
                "talker.thinker_to_talker_proj.weight",
                "talker.codec_head.weight",
                "token2wav.code2wav_dit_model.transformer_blocks.0.attn.to_q.weight",
                "token2wav.code2wav_dit_model.input_embed.spk_encoder.asp.conv.weight",
                "token2wav.code2wav_bigvgan_model.resblocks.0.activations.0.act.alpha",
            }
        ),
        frozenset({"spk_dict.pt"}),
    ),
    "qwen3_omni": Family(
        omni_qwen3_omni.tiny.write_tiny,
        Qwen3OmniMoeForConditionalGeneration,
        "qwen3_omni_moe",
        frozenset(
            {
                "thinker.model.embed_tokens.weight",
                "thinker.model.layers.0.mlp.experts.0.gate_proj.weight",
                "thinker.model.layers.0.mlp.gate.weight",
                "thinker.model.layers.0.self_attn.q_norm.weight",
                "thinker.lm_head.weight",
                "thinker.audio_tower.layers.0.self_attn.k_proj.bias",
                "thinker.visual.blocks.0.attn.qkv.weight",
                "talker.model.codec_embedding.weight",
                "talker.model.layers.0.mlp.shared_expert.down_proj.weight",
                "talker.model.layers.0.mlp.shared_expert_gate.weight",
                "talker.codec_head.weight",
                "talker.hidden_projection.linear_fc1.weight",
                "talker.code_predictor.model.codec_embedding.0.weight",
                "talker.code_predictor.lm_head.0.weight",
                "code2wav.code_embedding.weight",
                "code2wav.upsample.0.1.gamma",
                "code2wav.pre_transformer.layers.0.self_attn_layer_scale.scale",
            }
        ),
    ),
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


@pytest.fixture(scope="module")
def folder(family: Family, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    family.write_tiny(folder)
    return folder


def weights(folder: Path) -> dict[str, Tensor]:
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def saved(model: Any) -> dict[str, Tensor]:
    """By the names of files: those of modules are others in some versions of transformers."""
    with TemporaryDirectory() as folder, quiet():
        model.save_pretrained(folder)
        return weights(Path(folder))


def load(model: Any, folder: Path) -> Any:
    """The model, by transformers, which misses no weight and leaves none."""
    if model is Qwen2_5OmniForConditionalGeneration:  # which cannot report its loaded weights
        with quiet():
            loaded = model.from_pretrained(folder, dtype=torch.float32)
        assert saved(loaded).keys() == weights(folder).keys()
        return loaded
    with quiet():
        loaded, info = model.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert {key: list(value) for key, value in info.items() if value} == {}
    return loaded


def test_transformers_reads_every_weight_and_wants_no_other(family: Family, folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert (config["architectures"], config["model_type"]) == ([family.model.__name__], family.model_type)
    published, state = weights(folder), saved(load(family.model, folder))
    assert published.keys() >= family.names
    unstacked = [name for name in published if ".experts." not in name]
    assert all(torch.equal(state[name], published[name]) for name in unstacked)


def test_the_arguments_select_the_written_files(family: Family, folder: Path, tmp_path: Path) -> None:
    state = torch.random.get_rng_state()
    family.write_tiny(tmp_path / "same")
    family.write_tiny(tmp_path / "other", seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    files = {file.name for file in folder.iterdir()}
    assert files == {file.name for file in (tmp_path / "same").iterdir()}
    for name in files - family.timed:
        assert (tmp_path / "same" / name).read_bytes() == (folder / name).read_bytes()
    ours, others = weights(folder), weights(tmp_path / "other")
    assert ours.keys() == others.keys()
    assert not all(torch.equal(ours[name], others[name]) for name in ours)


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"colour": 3}, "unknown field `colour`"), ({"layers": "3"}, "int"), ({"seed": 1, "layers": None}, "int")],
    ids=str,
)
def test_unknown_sizes_are_refused(family: Family, tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^tiny: .*{message}.*the fields are layers, ") as caught:
        family.write_tiny(tmp_path / "never", **fields)
    assert "heads" in caught.value.remedy
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize("name", ["qwen2_5_omni", "qwen3_omni"])
def test_without_a_talker_only_the_thinker_is_written(name: str, tmp_path: Path) -> None:
    FAMILIES[name].write_tiny(tmp_path, talker=False)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["enable_audio_output"] is False
    assert {weight.split(".")[0] for weight in weights(tmp_path)} == {"thinker"}
    assert not (tmp_path / "spk_dict.pt").exists()
    if name == "qwen3_omni":  # transformers reads no Qwen2.5-Omni without voices
        assert not load(FAMILIES[name].model, tmp_path).has_talker
