"""The tiny checkpoint is what transformers would have published: its own classes wrote it, and read it."""

import filecmp
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen2Tokenizer, Qwen2VLImageProcessorPil, WhisperFeatureExtractor

from omni.errors import ConfigError
from omni_qwen2_5_omni.tiny import TinyShape, write_tiny
from tests.support.tiny_qwen2_5_omni import reference_model, tiny_folder


def test_transformers_reads_every_weight(tmp_path: Path) -> None:
    published = load_file(tiny_folder() / "model.safetensors")
    state = reference_model(tiny_folder()).state_dict()
    assert published.keys() == state.keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in published.items())
    # From the index of the released Qwen2.5-Omni-7B.
    assert published.keys() > {
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


def test_same_arguments_write_the_same(tmp_path: Path) -> None:
    global_state = torch.get_rng_state()
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_tiny(tmp_path / name, seed=seed, layers=1, vision_layers=1, dit_layers=1)
    assert torch.equal(torch.get_rng_state(), global_state)
    files = sorted(file.name for file in (tmp_path / "a").iterdir())
    assert "spk_dict.pt" in files
    same, other, _ = filecmp.cmpfiles(tmp_path / "a", tmp_path / "b", files, shallow=False)
    # The archive of voices bears the time it was written at.
    assert set(other) <= {"spk_dict.pt"}
    assert "model.safetensors" in same
    assert "model.safetensors" in filecmp.cmpfiles(tmp_path / "a", tmp_path / "c", files, shallow=False)[1]


def test_shape_is_what_is_asked_for(tmp_path: Path) -> None:
    write_tiny(tmp_path, layers=2, talker_layers=1, voices=("Ann",), dit_layers=2, upsample_rates=(3, 2), block_size=4)
    config: Any = json.loads((tmp_path / "config.json").read_text())
    assert config["thinker_config"]["text_config"]["num_hidden_layers"] == 2
    assert config["talker_config"]["num_hidden_layers"] == 1
    assert config["token2wav_config"]["bigvgan_config"]["upsample_rates"] == [3, 2]
    assert list(torch.load(tmp_path / "spk_dict.pt", weights_only=True)) == ["Ann"]


def test_without_a_talker_there_are_no_voices(tmp_path: Path) -> None:
    write_tiny(tmp_path, talker=False)
    assert not (tmp_path / "spk_dict.pt").exists()
    assert {name.split(".")[0] for name in load_file(tmp_path / "model.safetensors")} == {"thinker"}


@pytest.mark.parametrize("fields", [{"depth": 3}, {"layers": "two"}])
def test_unknown_shapes_are_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="the fields are layers"):
        write_tiny(tmp_path, **fields)


def test_transformers_reads_tokenizer_and_processors() -> None:
    folder = tiny_folder()
    tokenizer = Qwen2Tokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": [{"type": "audio"}, {"type": "image"}, {"type": "text", "text": "what is it"}]}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    tokens = tokenizer.tokenize(text)
    assert tokens[tokens.index("user") + 2 :][:6] == [
        "<|audio_bos|>",
        "<|AUDIO|>",
        "<|audio_eos|>",
        "<|vision_bos|>",
        "<|IMAGE|>",
        "<|vision_eos|>",
    ]
    assert tokens[-2:] == ["assistant", "Ċ"]
    assert (tokenizer.image_token, tokenizer.audio_token) == ("<|IMAGE|>", "<|AUDIO|>")
    assert Qwen2VLImageProcessorPil.from_pretrained(folder).patch_size == 14
    assert WhisperFeatureExtractor.from_pretrained(folder).feature_size == 128
    assert TinyShape().codes == 40
