"""What config.json must say for the family to serve it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import CsmConfig as HfConfig

from omni.checkpoint import Checkpoint
from omni.errors import CheckpointError
from omni.utils.quiet import quiet
from omni_csm.config import read_config
from omni_csm.pipeline import pipeline
from tests.support.csm_reference import tiny_csm


def _checkpoint(folder: Path, config: dict[str, Any]) -> Checkpoint:
    (folder / "config.json").write_text(json.dumps(config))
    return Checkpoint(folder)


def _tiny() -> dict[str, Any]:
    config: dict[str, Any] = json.loads((tiny_csm() / "config.json").read_text())
    return config


def test_the_defaults_of_the_format_are_served(tmp_path: Path) -> None:
    """transformers' defaults are the published sizes."""
    with quiet():
        config = read_config(_checkpoint(tmp_path, HfConfig().to_dict()))
    assert (config.backbone.width, config.backbone.num_layers, config.backbone.head_dim) == (2048, 16, 64)
    assert (config.depth.width, config.depth.num_layers, config.depth.head_dim) == (1024, 4, 128)
    assert (config.num_groups, config.vocab_size, config.mimi.frame_size) == (32, 2051, 1920)
    assert not config.backbone.qk_norm
    assert config.tied


def test_scaled_rotary_positions_are_those_of_the_file() -> None:
    config = read_config(Checkpoint(tiny_csm()))
    assert config.backbone.rope_scaling is not None
    assert config.depth.rope_scaling is not None
    assert (config.backbone.rope_scaling.factor, config.backbone.rope_scaling.trained_positions) == (32.0, 1024)
    assert (config.depth.rope_scaling.slow_turns, config.depth.rope_scaling.fast_turns) == (0.001953125, 0.0078125)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("mlp_bias", True, "mlp_bias: is True, not False"),
        ("depth_decoder_config.mlp_bias", True, "depth_decoder_config.mlp_bias: is True"),
        ("depth_decoder_config.num_codebooks", 3, "depth_decoder_config.num_codebooks: is 3, not 4"),
        ("depth_decoder_config.vocab_size", 99, "depth_decoder_config.vocab_size: is 99, not 67"),
        ("audio_token_id", 10**6, "audio_token_id: 1000000 is out of range, 0 to 259"),
        ("codebook_eos_token_id", 67, "codebook_eos_token_id: 67 is out of range, 0 to 66"),
        ("codebook_eos_token_id", [0, 1], "codebook_eos_token_id: [0, 1] is out"),
        ("depth_decoder_config.backbone_hidden_size", 32, "depth_decoder_config.backbone_hidden_size: is 32, not 64"),
        ("codec_config.num_quantizers", 5, "codec_config.num_quantizers: is 5, not 4"),
        ("codec_config.use_causal_conv", False, "codec_config.use_causal_conv: is False, not True"),
        ("codec_config.trim_right_ratio", 0.5, "codec_config.trim_right_ratio: is 0.5, not 1.0"),
        ("codec_config.pad_mode", "reflect", "codec_config.pad_mode: is 'reflect', not 'constant'"),
        ("codec_config.sampling_rate", 16000, "codec_config.sampling_rate: is 16000, not 24000"),
        ("codec_config.hidden_act", "silu", "codec_config.hidden_act: is 'silu', not 'gelu'"),
        ("hidden_act", "gelu", "hidden_act: 'gelu' is not supported"),
        ("hidden_size", "wide", "hidden_size: TypeError: Field 'hidden_size' expected int, got str"),
    ],
)
def test_what_is_not_served_is_refused(tmp_path: Path, path: str, value: object, message: str) -> None:
    raw = _tiny()
    place, *names = raw, *path.split(".")
    for name in names[:-1]:
        place = place[name]
    place[names[-1]] = value
    with pytest.raises(CheckpointError, match=r"config\.json") as caught:
        read_config(_checkpoint(tmp_path, raw))
    assert message in str(caught.value)


def test_sampling_is_that_of_the_checkpoint(tmp_path: Path) -> None:
    shutil.copy(tiny_csm(5, sampled=True) / "config.json", tmp_path)
    generation = {"do_sample": True, "temperature": 0.9, "top_k": 50, "max_new_tokens": 77, "eos_token_id": 3}
    codes = {"depth_decoder_do_sample": True, "depth_decoder_temperature": 0.8, "depth_decoder_top_p": 0.7}
    (tmp_path / "generation_config.json").write_text(json.dumps(generation | codes))
    sampling = pipeline(Checkpoint(tmp_path)).stage("backbone").options.sampling  # type: ignore[attr-defined]
    assert (sampling.temperature, sampling.top_k, sampling.max_tokens) == (0.9, 50, 77)
    assert (sampling.code_temperature, sampling.code_top_k, sampling.code_top_p) == (0.8, 50, 0.7)
    assert sampling.stop_token_ids == ()
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    greedy = pipeline(Checkpoint(tmp_path)).stage("backbone").options.sampling  # type: ignore[attr-defined]
    assert (greedy.temperature, greedy.code_temperature) == (0.9, 0.0)
