"""The released shapes of Qwen2.5-Omni have as many parameters as the published models, and our stages are built in these sizes."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import Qwen2_5OmniConfig, Qwen2_5OmniForConditionalGeneration

from omni.checkpoint import Checkpoint
from omni.utils.quiet import quiet
from omni_qwen2_5_omni.config import read_config
from omni_qwen2_5_omni.talker import Talker
from omni_qwen2_5_omni.thinker import Thinker
from omni_qwen2_5_omni.voices import read_voices
from tests.benchmarks.benchmark_script import run_script
from tests.support.tiers import SLOW, few

PUBLISHED = {"3b": 5.54, "7b": 10.73}
"""Billions, as the models' pages on the Hub have it."""
META = torch.device("meta")


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    def write(size: str) -> Path:
        run_script(monkeypatch, "shapes", f"qwen2.5-omni-{size}", str(tmp_path))
        return tmp_path

    return write


def count(module: nn.Module, but: tuple[str, ...] = ()) -> int:
    """Parameters without those of the submodules named `but`."""
    return sum(each.numel() for name, each in module.named_parameters() if not set(but) & set(name.split(".")))


@pytest.mark.parametrize("size", few(1, PUBLISHED, SLOW))
def test_the_shape_is_as_large_as_the_published_model(size: str, written: Callable[[str], Path]) -> None:
    folder = written(size)
    with quiet(), META:
        theirs = Qwen2_5OmniForConditionalGeneration(Qwen2_5OmniConfig.from_pretrained(folder))
    assert round(count(theirs) / 1e9, 2) == PUBLISHED[size]
    checkpoint = Checkpoint(folder)
    config, dtype = read_config(checkpoint), torch.bfloat16
    assert config.talker is not None
    assert count(Thinker(config, device=META, dtype=dtype)) == count(theirs.thinker, ("audio_tower", "visual"))
    assert len(read_voices(checkpoint)) == 2
    assert count(Talker(config.talker, 4, device=META, dtype=dtype)) == count(theirs.talker)
