"""The files of a repository on the hub that are fetched for a family."""

import json
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import pytest

from omni.engine import open_checkpoint
from omni.plugin import ModelFamily
from omni.plugin.manager import Plugins, Registry

PUBLISHED = ("config.json", "tokenizer.json", "model.safetensors", "voices.pt", "voices/one.bin", "notes.pdf")


def _plugins(*files: str) -> Plugins:
    family = ModelFamily(name="mine", model_types=("mine",), pipeline="nowhere:pipeline", files=files)
    none: Registry[ModelFamily] = Registry("entry", {}, {}, (), {})
    families = Registry("model family", {"mine": family}, {"mine": "plugin"}, (), {})
    return Plugins((), families, none, none, none, none, none, {"mine": "mine"}, {})  # type: ignore[arg-type]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where files of the repository `owner/model` are put when they are fetched."""

    def fetch(repository: str, *, allow_patterns: Sequence[str], local_files_only: bool) -> str:
        assert (repository, local_files_only) == ("owner/model", False)
        for name in PUBLISHED:
            if any(fnmatch(name, pattern) for pattern in allow_patterns):
                file = tmp_path / name
                file.parent.mkdir(exist_ok=True)
                file.write_text(json.dumps({"model_type": "mine"}))
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    return tmp_path


def _fetched(folder: Path) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    ("files", "weights", "more"),
    [
        ((), True, {"model.safetensors"}),
        ((), False, set()),
        (("voices.pt",), True, {"model.safetensors", "voices.pt"}),
        (("voices.pt",), False, {"voices.pt"}),
        (("*.pt", "voices/*"), False, {"voices.pt", "voices/one.bin"}),
    ],
)
def test_a_family_says_which_files_it_needs(hub: Path, files: tuple[str, ...], weights: bool, more: set[str]) -> None:
    checkpoint = open_checkpoint("owner/model", _plugins(*files), weights=weights)
    assert checkpoint.path == hub
    assert _fetched(hub) == {"config.json", "tokenizer.json"} | more


def test_for_a_model_that_no_plugin_serves_no_weights_are_fetched(hub: Path) -> None:
    nobody = replace(_plugins(), model_types={})
    assert open_checkpoint("owner/model", nobody).config == {"model_type": "mine"}
    assert _fetched(hub) == {"config.json", "tokenizer.json"}
