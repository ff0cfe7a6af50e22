"""A bad checkpoint or a bad setting: refused when the model is loaded, by an error that names the file or the setting."""

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from omni import CheckpointError, ConfigError, Omni
from tests.support.reference import tiny_checkpoint
from tests.support.tiny_omni import SHAPE, Bystander, tiny_plugins

SHARD = "model-00002-of-00003.safetensors"
INDEX = "model.safetensors.index.json"
Edit = Callable[[Path], object]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A checkpoint to spoil."""
    return Path(shutil.copytree(tiny_checkpoint(3, **SHAPE), tmp_path / "model"))


def load(model: Path | str, **settings: Any) -> None:
    Omni(model, device="cpu", plugins=tiny_plugins(), **settings).close()


def remove(file: str) -> Edit:
    return lambda folder: (folder / file).unlink()


def write(file: str, text: str) -> Edit:
    return lambda folder: (folder / file).write_text(text)


def cut(file: str, left: int) -> Edit:
    """Keeps so many bytes of a file; a negative number drops some."""
    return lambda folder: (folder / file).write_bytes((folder / file).read_bytes()[:left])


def remove_weights(folder: Path) -> None:
    for file in folder.glob("model*"):
        file.unlink()


def configure(value: object, *path: str) -> Edit:
    """Sets a field of config.json."""

    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        at = config
        for name in path[:-1]:
            at = at[name]
        at[path[-1]] = value
        (folder / "config.json").write_text(json.dumps(config))

    return edit


def reshape(name: str, shape: tuple[int, ...]) -> Edit:
    """Publishes a weight in another shape."""

    def edit(folder: Path) -> None:
        file = folder / json.loads((folder / INDEX).read_text())["weight_map"][name]
        weights = load_file(file)
        assert weights[name].shape != shape
        save_file({**weights, name: torch.zeros(shape)}, file)

    return edit


def forget(name: str) -> Edit:
    """Takes a weight out of the index."""

    def edit(folder: Path) -> None:
        index = json.loads((folder / INDEX).read_text())
        del index["weight_map"][name]
        (folder / INDEX).write_text(json.dumps(index))

    return edit


THINKER, TALKER, TEXT = "thinker_config", "talker_config", "text_config"
NORM, HEAD, CONV = "thinker.model.norm.weight", "talker.codec_head.weight", "code2wav.decoder.0.conv.weight"
KNOWN = "known are csm, qwen2_5_omni, qwen3, qwen3_moe, qwen3_omni_moe"
BAD_FILES: dict[str, tuple[Edit, str, str]] = {
    "no config": (remove("config.json"), "config.json", "is missing from"),
    "an unknown type": (
        configure("qwen9_omni", "model_type"),
        "config.json: model_type",
        f"no plugin serves model type 'qwen9_omni'; {KNOWN}; install a plugin that serves it",
    ),
    "no type": (write("config.json", "{}"), "config.json: model_type", KNOWN),
    "a size that is text": (
        configure("many", THINKER, TEXT, "num_hidden_layers"),
        "config.json",
        "'num_hidden_layers' expected int",
    ),
    "a part that is none": (configure(3, THINKER), "config.json", "use a published Qwen3-Omni folder"),
    "an empty part": (configure({}, TALKER), "config.json: talker_config.text_config.shared_expert", "is missing"),
    "another size": (
        configure(80, THINKER, TEXT, "hidden_size"),
        "config.json: thinker_config.audio_config.output_dim",
        "is 64, not 80; use the file that belongs to these weights",
    ),
    "another width": (
        configure(80, THINKER, TEXT, "moe_intermediate_size"),
        "thinker.model.layers.0.mlp.experts.0.down_proj.weight",
        "wrong tensor shape: expected (64, 80), found (64, 32); use the config.json that belongs to these weights",
    ),
    "more layers": (configure(4, THINKER, TEXT, "num_hidden_layers"), "", "download the whole checkpoint again"),
    "fewer layers": (
        configure(1, TALKER, TEXT, "num_hidden_layers"),
        "talker.model.layers.1.",
        "use a checkpoint whose config.json describes its weights",
    ),
    "no weights": (
        remove_weights,
        "checkpoint",
        'holds no weights: neither model.safetensors.index.json nor model.safetensors; download them, or use load_format="dummy"',
    ),
    "a missing shard": (remove(SHARD), SHARD, "; download the shard"),
    "a truncated shard": (cut(SHARD, -100), SHARD, "is truncated or no safetensors file"),
    "a thinker's weight of another shape": (
        reshape(NORM, (65,)),
        NORM,
        "wrong tensor shape: expected (64,), found (65,)",
    ),
    "a talker's weight of another shape": (reshape(HEAD, (3, 48)), HEAD, "found (3, 48); use the config.json that"),
    "a vocoder's weight of another shape": (
        reshape(CONV, (3,)),
        CONV,
        "wrong tensor shape: expected (64, 32, 7), found (3,)",
    ),
    "a weight that is not there": (
        forget(NORM),
        "",
        "has no weights for 1 parameters of the model: decoder.norm.weight",
    ),
    "no processor": (remove("preprocessor_config.json"), "preprocessor_config.json", "is missing from"),
    "no tokenizer": (remove("vocab.json"), "tokenizer", "download the tokenizer files"),
    "a broken tokenizer": (write("vocab.json", "hm"), "vocab.json", "is not valid JSON"),
    "no template": (remove("chat_template.json"), "chat_template", "download chat_template.json"),
    "a wrong sampling default": (
        write("generation_config.json", '{"do_sample": true, "temperature": "hot"}'),
        "generation_config.json",
        "correct it or download it again",
    ),
}


@pytest.mark.parametrize("how", BAD_FILES)
def test_a_bad_checkpoint(model: Path, how: str) -> None:
    edit, field, words = BAD_FILES[how]
    edit(model)
    threads = threading.active_count()
    with pytest.raises(CheckpointError) as caught:
        load(model)
    assert caught.value.field.startswith(field or str(model))
    assert words in str(caught.value)
    assert threading.active_count() <= threads


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    words = r"model: there is no folder .*; give a checkpoint folder or a hub id"
    for name in (tmp_path / "nowhere", str(tmp_path / "nowhere")):
        with pytest.raises(CheckpointError, match=words):
            load(name)


BAD_SETTINGS: dict[str, tuple[object, str]] = {
    "narrator.max_num_seqs": (
        8,
        "there is no stage 'narrator'; use one of audio_encoder, vision_encoder, thinker, talker, code2wav",
    ),
    "code2wav.max_model_len": (8, "there is no option 'max_model_len'; use one of"),
    "talker.num_blocks": ([4], "[4] does not fit: Expected `int | null`, got `array`; give a value of that type"),
    "thinker.max_num_seqs": (0, "must be at least 1, at most 16,777,216; use a value in the range it names"),
    "thinker.max_model_len": (10**6, "1000000 is longer than the model's 4096 positions; lower it"),
    "thinker.sampling.temperature": (-1, "-1.0 is out of range; use 0 (greedy), or 0.001 to 100"),
    "code2wav.chunk_frames": (10**6, "must be at least 1, at most 65,536; use a value in the range it names"),
}


@pytest.mark.parametrize("path", BAD_SETTINGS)
def test_a_bad_override(path: str) -> None:
    value, words = BAD_SETTINGS[path]
    with pytest.raises(ConfigError) as caught:
        load(tiny_checkpoint(3, **SHAPE), overrides={path: value})
    assert caught.value.field == path
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("dtype", "int3", "'int3' is not supported; use one of float32, bfloat16, float16"),
        ("load_format", "zip", '\'zip\' is not known; use "auto" or "dummy"'),
        ("device", "abacus", "abacus"),
    ],
)
def test_a_bad_setting(setting: str, value: str, words: str) -> None:
    settings: dict[str, Any] = {"device": "cpu", "plugins": tiny_plugins(), setting: value}
    with pytest.raises(ConfigError) as caught:
        Omni(tiny_checkpoint(3, **SHAPE), **settings)
    assert caught.value.field == setting
    assert words in str(caught.value)


def test_settings_are_checked_before_weights_are_read(model: Path) -> None:
    (model / SHARD).unlink()
    with pytest.raises(ConfigError, match="there is no stage 'narrator'"):
        load(model, overrides={"narrator.speed": 1})


def test_a_failed_load_harms_no_model_that_is_loaded(model: Path) -> None:
    with Omni(model, device="cpu", plugins=tiny_plugins()) as omni:
        bystander = Bystander.of(omni)
        (model / "config.json").unlink()
        with bystander.beside(omni), pytest.raises(CheckpointError):
            load(model)
