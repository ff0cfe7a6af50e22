"""The tiny checkpoint has the sizes that were asked for, and files that transformers reads."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Tokenizer, Qwen2VLImageProcessorPil, WhisperFeatureExtractor

from omni_qwen2_5_omni.tiny import TinyShape, write_tiny
from tests.support.tiny_qwen2_5_omni import tiny_folder


def test_shape_is_the_requested_one(tmp_path: Path) -> None:
    write_tiny(tmp_path, layers=2, talker_layers=1, voices=("Ann",), dit_layers=2, upsample_rates=(3, 2), block_size=4)
    config: Any = json.loads((tmp_path / "config.json").read_text())
    assert config["thinker_config"]["text_config"]["num_hidden_layers"] == 2
    assert config["talker_config"]["num_hidden_layers"] == 1
    assert config["token2wav_config"]["bigvgan_config"]["upsample_rates"] == [3, 2]
    assert list(torch.load(tmp_path / "spk_dict.pt", weights_only=True)) == ["Ann"]


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
