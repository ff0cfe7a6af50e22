import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoTokenizer, Qwen2VLImageProcessorPil, WhisperFeatureExtractor

from omni.errors import CheckpointError, InputError
from omni_qwen3_omni.tiny import write_tiny
from tests.support.reference import load_processor

MESSAGES = [
    {"role": "system", "content": "you are here"},
    {"role": "user", "content": [{"type": "audio"}, {"type": "image"}, {"type": "text", "text": "hello"}]},
]
PROMPT = (
    "<|im_start|>system\nyou are here<|im_end|>\n<|im_start|>user\n<|audio_start|><|audio_pad|><|audio_end|>"
    "<|vision_start|><|image_pad|><|vision_end|>hello<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(folder)
    return folder


@pytest.fixture
def folder(source: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    for file in source.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_features_are_those_of_the_parts(source: Path) -> None:
    processor = load_processor(source)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (96, 64, 3), dtype=np.uint8))
    sound = np.sin(np.arange(32000) / 16000 * 2764).astype(np.float32)
    text = processor.apply_chat_template(MESSAGES, add_generation_prompt=True)
    assert text == PROMPT
    out = processor(text=text, audio=[sound], images=[picture], return_tensors="pt")

    images = Qwen2VLImageProcessorPil(
        patch_size=16,
        merge_size=2,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
        size={"shortest_edge": 1024, "longest_edge": 65536},
    )([picture], return_tensors="pt")
    assert torch.equal(out["pixel_values"], images["pixel_values"])
    assert out["image_grid_thw"].tolist() == [[1, 6, 4]]
    extractor: Any = WhisperFeatureExtractor(feature_size=128, chunk_length=300)
    audio = extractor(
        sound, sampling_rate=16000, padding=True, truncation=False, return_attention_mask=True, return_tensors="pt"
    )
    assert torch.equal(out["input_features"], audio["input_features"])
    assert out["input_features"].shape == (1, 128, 200)

    expected = PROMPT.replace("<|audio_pad|>", "<|audio_pad|>" * 26).replace("<|image_pad|>", "<|image_pad|>" * 6)
    assert out["input_ids"][0].tolist() == AutoTokenizer.from_pretrained(source).encode(expected)


@pytest.mark.parametrize("place", ["chat_template.jinja", "chat_template.json", "tokenizer_config.json"])
def test_the_chat_template_may_lie_in_any_of_three_files(folder: Path, place: str) -> None:
    template = json.loads((folder / "chat_template.json").read_text())["chat_template"]
    (folder / "chat_template.json").unlink()
    if place == "chat_template.jinja":
        (folder / place).write_text(template)
    elif place == "chat_template.json":
        (folder / place).write_text(json.dumps({"chat_template": template}))
    else:
        config = json.loads((folder / place).read_text())
        (folder / place).write_text(json.dumps(config | {"chat_template": template}))
    assert load_processor(folder).apply_chat_template(MESSAGES, add_generation_prompt=True) == PROMPT


def test_a_tokenizer_json_does_as_well(folder: Path) -> None:
    """Newer checkpoints hold tokenizer.json in place of vocabulary and merges."""
    before = load_processor(folder).tokenizer
    ids = before.encode(PROMPT)
    before.save_pretrained(folder)
    (folder / "vocab.json").unlink(missing_ok=True)
    (folder / "merges.txt").unlink(missing_ok=True)
    assert load_processor(folder).tokenizer.encode(PROMPT) == ids


def test_video_is_refused(source: Path) -> None:
    frames = np.zeros((4, 3, 32, 32), np.uint8)
    with pytest.raises(InputError, match="video input is not supported") as caught:
        load_processor(source)(text="<|vision_start|><|video_pad|><|vision_end|>", videos=[frames])
    assert caught.value.field == "videos"


@pytest.mark.parametrize(
    ("file", "field"),
    [
        ("preprocessor_config.json", "preprocessor_config.json"),
        ("tokenizer_config.json", "tokenizer_config.json"),
        ("vocab.json", "tokenizer"),
        ("merges.txt", "tokenizer"),
        ("chat_template.json", "chat_template"),
    ],
)
def test_missing_files(folder: Path, file: str, field: str) -> None:
    (folder / file).unlink()
    with pytest.raises(CheckpointError) as caught:
        load_processor(folder)
    assert caught.value.field == field


@pytest.mark.parametrize("text", ["{", "[]", "\0"])
@pytest.mark.parametrize(
    ("file", "field"),
    [
        ("preprocessor_config.json", "preprocessor_config.json"),
        ("tokenizer_config.json", "tokenizer_config.json"),
        ("vocab.json", "vocab.json"),
        ("chat_template.json", "chat_template.json"),
    ],
)
def test_broken_files(folder: Path, file: str, field: str, text: str) -> None:
    (folder / file).write_text(text)
    with pytest.raises(CheckpointError) as caught:
        load_processor(folder)
    assert caught.value.field == field
