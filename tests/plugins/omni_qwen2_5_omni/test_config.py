"""The typed config of a checkpoint, and the errors for a wrong one."""

import json
import shutil
from pathlib import Path

import pytest

from omni.checkpoint import Checkpoint
from omni_qwen2_5_omni.config import read_config
from tests.support.tiny_qwen2_5_omni import tiny_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_folder(), tmp_path / "checkpoint"))


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
