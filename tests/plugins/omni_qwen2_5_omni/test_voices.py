"""The voices of a checkpoint, and the errors for a wrong spk_dict.pt."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from omni.checkpoint import Checkpoint
from omni.errors import CheckpointError
from omni_diffusion.options import DiffusionOptions
from omni_qwen2_5_omni.token2wav import build
from omni_qwen2_5_omni.voices import read_voices
from tests.support.tiny_qwen2_5_omni import stage_context, tiny_folder

FILE = "spk_dict.pt"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_folder(), tmp_path / "checkpoint"))


def voice(**changed: Any) -> dict[str, Any]:
    """A right one, but for what is `changed`. 4 frames are what the tiny speaker encoder needs."""
    return {"bos_token": 1, "cond": torch.zeros(1, 12), "ref_mel": torch.zeros(1, 4, 8), **changed}


def test_voices_have_the_tensors_of_the_file() -> None:
    voices = read_voices(Checkpoint(tiny_folder()))
    raw = torch.load(tiny_folder() / FILE, weights_only=True)
    assert list(voices) == list(raw) == ["Chelsie", "Ethan"]
    for name, read in voices.items():
        assert read.bos == raw[name]["bos_token"]
        assert torch.equal(read.speaker_V, raw[name]["cond"][0])
        assert torch.equal(read.reference_TM, raw[name]["ref_mel"][0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, r"spk_dict\.pt: names no voices"),
        ({"Ann": 1}, r"spk_dict\.pt: Ann: names no entries"),
        ({"Ann": {"cond": torch.zeros(1, 12)}}, r"spk_dict\.pt: Ann: lacks bos_token"),
        ({"Ann": voice(bos_token=600)}, r"Ann\.bos_token: 600 is out of range, 0 to 575"),
        ({"Ann": voice(cond=torch.zeros(1, 13))}, r"Ann\.cond: is \[1, 13\], not \[1, 12\]"),
        ({"Ann": voice(ref_mel=torch.zeros(1, 9, 7))}, r"Ann\.ref_mel: is \[1, 9, 7\]"),
        (
            {"Ann": voice(), "Bob": voice(ref_mel=torch.zeros(1, 3, 8))},
            r"Bob\.ref_mel: is .*, not \[1, at least 4, 8\]",
        ),
    ],
)
def test_wrong_voices_are_named(folder: Path, content: object, message: str) -> None:
    torch.save(content, folder / FILE)
    with pytest.raises(CheckpointError, match=message):
        read_voices(Checkpoint(folder))


def test_the_shortest_reference_is_the_least_of_the_network(folder: Path) -> None:
    torch.save({"Ann": voice()}, folder / FILE)
    model = build(replace(stage_context(folder, "token2wav"), options=DiffusionOptions()))
    assert model.num_voices == 1
    read = read_voices(Checkpoint(folder))["Ann"]
    with pytest.raises(RuntimeError, match=r"(?i)padding size should be less"):
        model.net.voice(read.speaker_V, read.reference_TM[1:])
