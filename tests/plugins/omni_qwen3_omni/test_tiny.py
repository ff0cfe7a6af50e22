"""The tiny checkpoint's experts, sizes, tokens and shards."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, Qwen3OmniMoeForConditionalGeneration

from omni_qwen3_omni.tiny import write_tiny

INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(folder)
    return folder


@pytest.fixture(scope="module")
def model(tiny: Path) -> Any:
    return Qwen3OmniMoeForConditionalGeneration.from_pretrained(tiny, dtype=torch.float32)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def test_experts_are_published_one_by_one_as_transformers_does(model: Any, tiny: Path, tmp_path: Path) -> None:
    published, state = weights(tiny), model.state_dict()
    stem = "talker.model.layers.1.mlp.experts"
    gate_up = [published[f"{stem}.2.{part}_proj.weight"] for part in ("gate", "up")]
    assert torch.equal(state[f"{stem}.gate_up_proj"][2], torch.cat(gate_up))
    assert torch.equal(state[f"{stem}.down_proj"][2], published[f"{stem}.2.down_proj.weight"])
    model.save_pretrained(tmp_path)
    listed = json.loads((tiny / INDEX).read_text())["weight_map"]
    assert published.keys() == listed.keys() == weights(tmp_path).keys()


def test_config_has_the_numbers_of_the_shape(model: Any) -> None:
    config = model.config
    text = config.talker_config.text_config
    assert config.enable_audio_output
    assert (text.num_experts, text.num_experts_per_tok, text.num_hidden_layers) == (4, 2, 2)
    assert text.vocab_size - 1024 == config.code2wav_config.codebook_size
    assert (text.rope_parameters["mrope_section"], text.rope_parameters["rope_theta"]) == ([4, 2, 2], 10000)
    assert list(config.talker_config.speaker_id) == ["ethan", "chelsie", "aiden"]


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


def test_shards_keep_their_size(tmp_path: Path) -> None:
    write_tiny(tmp_path, max_shard_size=300_000)
    shards = [load_file(file) for file in tmp_path.glob("*.safetensors")]
    sizes = [sum(t.nbytes for t in shard.values()) for shard in shards]
    assert len(sizes) > 5
    assert all(size <= 300_000 or len(shard) == 1 for size, shard in zip(sizes, shards, strict=True))
    assert json.loads((tmp_path / INDEX).read_text())["metadata"]["total_size"] == sum(sizes)
