"""A file that a family's front end needs and that is missing or broken is named when the front end is made."""

import itertools
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from omni.checkpoint import Checkpoint
from omni.errors import CheckpointError
from omni_csm.frontend import build as csm
from omni_qwen2_5_omni.frontend import build as qwen2_5_omni
from omni_qwen3_omni.frontend import build as qwen3_omni
from omni_text.frontend import build as text
from omni_text.tiny import write_tiny
from tests.support.csm_reference import tiny_csm
from tests.support.reference import temporary_folder, tiny_checkpoint
from tests.support.tiny_qwen2_5_omni import tiny_folder

CONFIG, MEDIA, TEMPLATE = "tokenizer_config.json", "preprocessor_config.json", "chat_template"


def tiny_text() -> Path:
    folder = temporary_folder()
    write_tiny(folder)
    return folder


FAMILIES: dict[str, tuple[Callable[[], Path], Callable[[Checkpoint], Any], Mapping[str, str]]] = {
    "text": (tiny_text, text, {CONFIG: CONFIG, "tokenizer.json": "tokenizer"}),
    "csm": (tiny_csm, csm, {CONFIG: CONFIG, "tokenizer.json": "tokenizer", "chat_template.jinja": TEMPLATE}),
    "qwen2_5_omni": (
        tiny_folder,
        qwen2_5_omni,
        {CONFIG: CONFIG, MEDIA: MEDIA, "tokenizer.json": "tokenizer", "chat_template.jinja": TEMPLATE},
    ),
    "qwen3_omni": (
        tiny_checkpoint,
        qwen3_omni,
        {
            CONFIG: CONFIG,
            MEDIA: MEDIA,
            "chat_template.json": TEMPLATE,
            "vocab.json": "tokenizer",
            "merges.txt": "tokenizer",
        },
    ),
}
"""By family, its tiny checkpoint, its front end, and the files that this needs, with the field of the error if one is missing."""


@pytest.fixture
def folder(family: str, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    made, _, _ = FAMILIES[family]
    return Path(shutil.copytree(made(), tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors")))


FILES = [(family, file) for family, (_, _, needed) in FAMILIES.items() for file in needed]


@pytest.mark.parametrize(("family", "file"), FILES)
def test_missing_files_are_named(family: str, folder: Path, file: str) -> None:
    (folder / file).unlink()
    _, build, fields = FAMILIES[family]
    with pytest.raises(CheckpointError, match=rf"^{fields[file]}: (is missing|there is none) "):
        build(Checkpoint(folder))


@pytest.mark.parametrize(
    ("family", "file", "text"),
    [(*case, text) for case, text in itertools.product(FILES, ("{", "[]", "\0")) if case[1].endswith("json")],
)
def test_broken_files_are_named(family: str, folder: Path, file: str, text: str) -> None:
    (folder / file).write_text(text)
    with pytest.raises(CheckpointError) as caught:
        FAMILIES[family][1](Checkpoint(folder))
    assert caught.value.field == file
