"""Values of config.json that the family requires."""

import json
import shutil
from pathlib import Path
from typing import Any

from transformers import CsmConfig as HfConfig

from omni.checkpoint import Checkpoint
from omni.utils.quiet import quiet
from omni_csm.config import read_config
from omni_csm.pipeline import pipeline
from tests.support.csm_reference import tiny_csm


def _checkpoint(folder: Path, config: dict[str, Any]) -> Checkpoint:
    (folder / "config.json").write_text(json.dumps(config))
    return Checkpoint(folder)


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
