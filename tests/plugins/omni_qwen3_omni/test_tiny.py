"""The tiny checkpoint is what transformers would have published: read with its own classes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, Qwen3OmniMoeForConditionalGeneration

from omni.errors import ConfigError
from omni_qwen3_omni.tiny import write_tiny

INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(folder)
    return folder


def names(folder: Path) -> set[str]:
    return set(json.loads((folder / INDEX).read_text())["weight_map"])


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def load(folder: Path) -> tuple[Any, dict[str, Any]]:
    loaded: Any = Qwen3OmniMoeForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    model, info = loaded
    return model, info


def test_transformers_reads_every_weight_and_wants_no_other(tiny: Path) -> None:
    model, info = load(tiny)
    assert {key: list(value) for key, value in info.items() if value} == {}
    published = weights(tiny)
    assert sum(p.numel() for p in model.parameters()) == sum(t.numel() for t in published.values())
    state = model.state_dict()
    unstacked = [name for name in published if ".experts." not in name]
    assert all(torch.equal(state[name], published[name]) for name in unstacked)
    stem = "talker.model.layers.1.mlp.experts"
    gate_up = [published[f"{stem}.2.{part}_proj.weight"] for part in ("gate", "up")]
    assert torch.equal(state[f"{stem}.gate_up_proj"][2], torch.cat(gate_up))
    assert torch.equal(state[f"{stem}.down_proj"][2], published[f"{stem}.2.down_proj.weight"])


def test_names_are_those_that_transformers_publishes(tiny: Path, tmp_path: Path) -> None:
    model, _ = load(tiny)
    model.save_pretrained(tmp_path)
    assert names(tiny) == set(weights(tmp_path))
    # From the index of the released Qwen3-Omni-30B-A3B-Instruct.
    assert names(tiny) > {
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


def test_config_says_what_the_shape_says(tiny: Path) -> None:
    config = json.loads((tiny / "config.json").read_text())
    assert config["architectures"] == ["Qwen3OmniMoeForConditionalGeneration"]
    assert config["model_type"] == "qwen3_omni_moe"
    assert config["enable_audio_output"] is True
    model, _ = load(tiny)
    text = model.config.talker_config.text_config
    assert (text.num_experts, text.num_experts_per_tok, text.num_hidden_layers) == (4, 2, 2)
    assert text.vocab_size - 1024 == model.config.code2wav_config.codebook_size
    assert text.rope_parameters["mrope_section"] == [4, 2, 2]
    assert text.rope_parameters["rope_theta"] == 10000
    assert list(model.config.talker_config.speaker_id) == ["ethan", "chelsie", "aiden"]


def test_words_of_the_chat_template_are_single_tokens(tiny: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    config = json.loads((tiny / "config.json").read_text())
    for role in ("system", "user", "assistant"):
        text = f"<|im_start|>{role}\nhello"
        ids = tokenizer.encode(text)
        assert ids[:2] == [config["im_start_token_id"], config[f"{role}_token_id"]]
        assert tokenizer.decode(ids[2]) == "\n"
        assert tokenizer.decode(ids) == text
    assert tokenizer.decode(tokenizer.encode("Grüße, 你好 🙂")) == "Grüße, 你好 🙂"
    assert config["thinker_config"]["text_config"]["vocab_size"] >= len(tokenizer)


def test_the_seed_decides(tiny: Path, tmp_path: Path) -> None:
    state = torch.random.get_rng_state()
    write_tiny(tmp_path / "same")
    write_tiny(tmp_path / "other", seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    for file in tiny.iterdir():
        assert (tmp_path / "same" / file.name).read_bytes() == file.read_bytes()
    ours, others = weights(tiny), weights(tmp_path / "other")
    assert ours.keys() == others.keys()
    assert not [name for name in ours if torch.equal(ours[name], others[name])]


def test_shards_keep_their_size(tmp_path: Path) -> None:
    write_tiny(tmp_path, max_shard_size=300_000)
    shards = [load_file(file) for file in tmp_path.glob("*.safetensors")]
    sizes = [sum(t.nbytes for t in shard.values()) for shard in shards]
    assert len(sizes) > 5
    assert all(size <= 300_000 or len(shard) == 1 for size, shard in zip(sizes, shards, strict=True))
    assert json.loads((tmp_path / INDEX).read_text())["metadata"]["total_size"] == sum(sizes)


def test_without_a_talker(tmp_path: Path) -> None:
    write_tiny(tmp_path, talker=False)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["enable_audio_output"] is False
    assert not {"talker_config", "code2wav_config"} & config.keys()
    assert {name.split(".")[0] for name in names(tmp_path)} == {"thinker"}
    model, info = load(tmp_path)
    assert not model.has_talker
    assert {key: list(value) for key, value in info.items() if value} == {}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layer": 3}, "unknown field `layer`"),
        ({"layers": "3"}, "int"),
        ({"talker": 1}, "bool"),
        ({"voices": 1}, "array"),
    ],
)
def test_shapes_that_are_none(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        write_tiny(tmp_path / "never", **fields)
    assert "accept_hidden_layer" in caught.value.remedy
    assert not (tmp_path / "never").exists()
