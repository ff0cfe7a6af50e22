"""The family against the loop in plain torch, and through the public interface."""

from pathlib import Path

import pytest

from omni import CheckpointError, InputError, Omni, SamplingParams
from omni.checkpoint import Checkpoint
from omni.testing import check_family
from omni.tiny import write_json
from omni_pocket.reference import Reference
from omni_pocket.tiny import write

TEXTS = ("once upon a time", "a", "the quick brown fox jumps over the lazy dog and on", "grüße, 你好")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pocket")
    write(path, seed=0)
    return path


def test_tokens_are_those_of_the_reference(folder: Path) -> None:
    check_family(folder, reference=Reference(folder), texts=TEXTS)


def test_streamed_text_is_that_of_the_whole_result(folder: Path) -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    with Omni(folder, device="cpu") as omni:
        pieces = [out.text for out in omni.generate("once", sampling=greedy)]
        whole = omni.generate("once", stream=False, sampling=greedy)
    assert "".join(pieces) == whole.text
    assert whole.usage.prompt_tokens == len("once")


def test_an_empty_prompt_is_refused(folder: Path) -> None:
    with Omni(folder, device="cpu") as omni, pytest.raises(InputError, match="hold no text"):
        omni.generate("  ", stream=False)


def test_a_wrong_config_is_refused(folder: Path, tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", Checkpoint(folder).config | {"num_key_value_heads": 3})
    with pytest.raises(CheckpointError, match="num_key_value_heads"):
        Omni(tmp_path, device="cpu")
