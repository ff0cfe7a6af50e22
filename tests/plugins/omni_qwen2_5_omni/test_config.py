"""What is read of a checkpoint, and what is said of a wrong one."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from omni.checkpoint import Checkpoint
from omni.errors import CheckpointError
from omni_qwen2_5_omni.config import read_config, read_voices
from support.tiny_qwen2_5_omni import tiny_folder


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
        ("talker_config.embedding_size", 60, "embedding_size: is 60, but the thinker's states are 64 wide"),
        ("talker_config.tts_codec_end_token_id", 45, "tts_codec_eos: 45 is out of range"),
        ("talker_config.tts_text_end_token_id", -1, "tts_text_eos: -1 is out of range"),
        ("talker_config.use_sliding_window", True, r"talker_config\.use_sliding_window: is not supported"),
        ("thinker_config.text_config.hidden_act", "gelu", "hidden_act: 'gelu' is not supported"),
        ("thinker_config.text_config.num_hidden_layers", "three", "use a published"),
        ("token2wav_config.dit_config.block_size", 9, r"dit_config\.block_size: is 9: no whole number of codes"),
        ("token2wav_config.bigvgan_config.mel_dim", 9, r"bigvgan_config\.mel_dim: is 9, but 8 are made"),
    ],
)
def test_wrong_values_are_named(folder: Path, path: str, value: object, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_config(change(folder, path, value))


def test_voices() -> None:
    voices = read_voices(Checkpoint(tiny_folder()))
    raw = torch.load(tiny_folder() / "spk_dict.pt", weights_only=True)
    assert list(voices) == list(raw) == ["Chelsie", "Ethan"]
    for name, voice in voices.items():
        assert voice.bos == raw[name]["bos_token"]
        assert torch.equal(voice.speaker_V, raw[name]["cond"][0])
        assert torch.equal(voice.reference_TM, raw[name]["ref_mel"][0])


class _Code:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return Path.touch, (Path("executed"),)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"Ann": _Code()}, r"spk_dict\.pt: cannot be read"),
        ({}, "names no voice"),
        ([1], "names no voice"),
        ({"Ann": {"bos_token": 1, "cond": torch.zeros(1, 12)}}, "Ann: lacks bos_token, cond or ref_mel"),
        (
            {"Ann": {"bos_token": 600, "cond": torch.zeros(1, 12), "ref_mel": torch.zeros(1, 9, 8)}},
            "bos_token: 600 is out",
        ),
        ({"Ann": {"bos_token": 1, "cond": torch.zeros(1, 13), "ref_mel": torch.zeros(1, 9, 8)}}, r"cond: is \[1, 13\]"),
        (
            {"Ann": {"bos_token": 1, "cond": torch.zeros(12), "ref_mel": torch.zeros(1, 9, 7)}},
            r"ref_mel: is \[1, 9, 7\]",
        ),
        (
            {"Ann": {"bos_token": 1, "cond": torch.zeros(12), "ref_mel": torch.full((1, 9, 8), torch.nan)}},
            "ref_mel: holds numbers that are not finite",
        ),
    ],
)
def test_wrong_voices_are_named(folder: Path, content: object, message: str) -> None:
    torch.save(content, folder / "spk_dict.pt")
    with pytest.raises(CheckpointError, match=message):
        read_voices(Checkpoint(folder))
    assert not Path("executed").exists()


def test_missing_or_broken_voices(folder: Path) -> None:
    file = folder / "spk_dict.pt"
    file.write_bytes(b"not a zip file")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_voices(Checkpoint(folder))
    file.unlink()
    with pytest.raises(CheckpointError, match="there is none in"):
        read_voices(Checkpoint(folder))
