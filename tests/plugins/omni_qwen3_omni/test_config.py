"""The typed config of config.json, and the errors for a wrong one."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig

from omni.checkpoint import Checkpoint
from omni.checkpoint.checks import Section
from omni_qwen3_omni.code2wav import Code2Wav
from omni_qwen3_omni.config import OmniConfig, read_config
from omni_vocoder.layers import window_shape
from tests.support.reference import tiny_checkpoint

RELEASED = {
    "codebook_dim": 512,
    "model_type": "qwen3_omni_moe_code2wav",
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "rope_theta": 10000,
    "sliding_window": 72,
    "upsample_rates": [8, 5, 4, 3],
    "upsampling_ratios": [2, 2],
}


def read(folder: Path, path: str, value: object) -> OmniConfig:
    """The tiny config.json with one value replaced."""
    config: Any = json.loads((tiny_checkpoint() / "config.json").read_text())
    *parents, name = path.split(".")
    inner = config
    for parent in parents:
        inner = inner[parent]
    inner[name] = value
    (folder / "config.json").write_text(json.dumps(config))
    return read_config(Checkpoint(folder))


def vocoder(config: Qwen3OmniMoeCode2WavConfig) -> Code2Wav:
    section = Section(config.to_dict())
    with torch.device("meta"):
        return Code2Wav(section, window_shape(section))


def test_vocoder_of_released_numbers(tmp_path: Path) -> None:
    """transformers' defaults are the published sizes, and a file leaves out what equals them."""
    config = read(tmp_path, "code2wav_config", RELEASED)
    assert config.code2wav_window is not None
    with torch.device("meta"):
        model = Code2Wav(config.code2wav, config.code2wav_window)
    whole = vocoder(Qwen3OmniMoeCode2WavConfig())
    assert {n: p.shape for n, p in model.named_parameters()} == {n: p.shape for n, p in whole.named_parameters()}
    assert (model.samples(1, first=False), model.samples(1, first=True)) == (1920, 1920 - 555)
    assert (model.min_first_frames, model.num_groups, model.sample_rate) == (1, 16, 24000)
    assert model.pre_transformer.shape.head_dim == 64


@pytest.mark.parametrize(
    "raw", [{"rope_theta": 500}, {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "rope_theta": 7}]
)
def test_rope_theta_is_read_where_either_file_format_keeps_it(tmp_path: Path, raw: dict[str, object]) -> None:
    config = read(tmp_path, "code2wav_config", raw)
    assert config.code2wav_window is not None
    assert config.code2wav_window.rope_theta == 500.0


def test_unused_sections_are_not_checked(tmp_path: Path) -> None:
    raw = json.loads((tiny_checkpoint(talker=False) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(raw | {"code2wav_config": {"decoder_dim": 8}}))
    assert read_config(Checkpoint(tmp_path)).talker is None
