"""Stages of different dtypes pass tensors to each other: hidden states and embeddings have the dtype of their reader."""

from pathlib import Path

import pytest

from omni import Omni, Result
from omni_qwen3_omni.tiny import write_tiny
from tests.support.tiers import SLOW, few
from tests.support.tiny_omni import SHAPE, assert_freed, lengths, picture, sound, tiny_plugins, user
from tests.support.tiny_qwen2_5_omni import tiny_folder

pytestmark = pytest.mark.thorough

FAMILIES = ("qwen3_omni", "qwen2_5_omni")
TOKENS, CODES = 6, 12


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("mixed")
    write_tiny(folder, stop_gain=0.0, codec_stop_gain=0.0)
    return dict(zip(FAMILIES, (folder, tiny_folder(**SHAPE)), strict=True))


def say(folder: Path, **dtypes: str) -> Result:
    settings = {"engine.dtype": "float32"} | {f"{stage}.dtype": dtype for stage, dtype in dtypes.items()}
    with Omni(folder, device="cpu", plugins=tiny_plugins(), overrides=settings) as omni:
        chat = user(picture(1, 60, 100), sound(2, 0.6), "who are you")
        result = omni.generate(chat, sampling=lengths(TOKENS, CODES), stream=False)
        assert_freed(omni)
        return result


@pytest.mark.parametrize("family", few(1, FAMILIES, SLOW))
@pytest.mark.parametrize("stage", few(1, ["thinker", "vision_encoder", "talker"], SLOW))
def test_a_stage_may_be_of_another_dtype_than_those_beside_it(
    folders: dict[str, Path], family: str, stage: str
) -> None:
    full, mixed = say(folders[family]), say(folders[family], **{stage: "bfloat16"})
    assert mixed.error is None
    assert len(mixed.tokens) == TOKENS
    assert stage != "talker" or mixed.tokens == full.tokens
    assert mixed.audio is not None
    assert full.audio is not None
    assert mixed.audio.shape == full.audio.shape
    assert mixed.audio.isfinite().all()
