"""What is read of a checkpoint, and what is said of a wrong one."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from omni.checkpoint import Checkpoint
from omni.errors import CheckpointError
from omni_qwen2_5_omni.config import read_config
from tests.support.tiny_qwen2_5_omni import tiny_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_folder(), tmp_path / "checkpoint"))


def change(folder: Path, path: str, value: object) -> Checkpoint:
    """With one value of config.json replaced."""
    file = folder / "config.json"
    config: Any = json.loads(file.read_text())
    *parents, name = path.split(".")
    inner = config
    for parent in parents:
        inner = inner[parent]
    inner[name] = value
    file.write_text(json.dumps(config))
    return Checkpoint(folder)


def test_a_checkpoint_in_typed_form() -> None:
    config = read_config(Checkpoint(tiny_folder()))
    assert config.talker is not None
    for decoder in (config.thinker, config.talker.decoder):
        assert (decoder.attention_bias, decoder.output_bias, decoder.qk_norm) == (True, False, False)
        assert (decoder.mrope_section, decoder.mrope_interleaved) == ((2, 3, 3), False)
    assert (config.thinker.head_dim, config.talker.decoder.head_dim, config.talker.decoder.width) == (16, 16, 40)
    assert (config.talker.codec_pad, config.talker.codec_bos, config.talker.codec_eos) == (40, 41, 42)
    assert read_config(Checkpoint(tiny_folder(talker=False))).talker is None


def test_published_rotary_settings_are_read(folder: Path) -> None:
    """As the released files write them, under `rope_scaling` and `rope_theta`."""
    config = json.loads((folder / "config.json").read_text())
    text = config["thinker_config"]["text_config"]
    del text["rope_parameters"]
    text |= {"rope_theta": 1e6, "rope_scaling": {"mrope_section": [4, 2, 2], "rope_type": "default", "type": "default"}}
    (folder / "config.json").write_text(json.dumps(config))
    decoder = read_config(Checkpoint(folder)).thinker
    assert (decoder.rope_theta, decoder.mrope_section) == (1e6, (4, 2, 2))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("thinker_config.audio_token_index", 576, r"thinker_config\.audio_token_index: 576 is out of range, 0 to 575"),
        ("talker_config.embedding_size", 60, r"talker_config\.embedding_size: is 60, not 64"),
        ("talker_config.tts_codec_end_token_id", 45, "tts_codec_end_token_id: 45 is out of range, 0 to 44"),
        ("talker_config.tts_text_end_token_id", -1, "tts_text_end_token_id: -1 is out of range"),
        ("talker_config.use_sliding_window", True, r"talker_config\.use_sliding_window: is not supported"),
        ("thinker_config.text_config.hidden_act", "gelu", "hidden_act: 'gelu' is not supported"),
        ("thinker_config.text_config.num_hidden_layers", "three", "use a published"),
        (
            "token2wav_config.dit_config.block_size",
            9,
            r"dit_config\.block_size: is 9, no multiple of repeats, which is 2",
        ),
        ("token2wav_config.dit_config.block_size", 0, r"dit_config\.block_size: is 0, below 1"),
        ("token2wav_config.dit_config.block_size", -8, r"dit_config\.block_size: is -8, below 1"),
        ("token2wav_config.dit_config.repeats", 0, r"dit_config\.repeats: is 0, below 1"),
        ("token2wav_config.dit_config.look_ahead_layers", [3], r"look_ahead_layers\[0\]: 3 is out of range, 0 to 2"),
        ("token2wav_config.dit_config.look_backward_layers", [0, -1], r"look_backward_layers\[1\]: -1 is out of range"),
        ("token2wav_config.bigvgan_config.mel_dim", 9, r"bigvgan_config\.mel_dim: is 9, not 8"),
    ],
)
def test_wrong_values_are_named(folder: Path, path: str, value: object, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_config(change(folder, path, value))
