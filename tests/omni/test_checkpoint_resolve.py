from pathlib import Path

import pytest

from omni.checkpoint import resolve
from omni.errors import CheckpointError


def test_a_local_folder(tmp_path: Path) -> None:
    assert resolve(tmp_path) == tmp_path
    assert resolve(str(tmp_path)) == tmp_path


def test_the_home_folder_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    assert resolve("~/model") == tmp_path / "model"


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.touch()
    with pytest.raises(CheckpointError, match="is a file; give the folder"):
        resolve(file)


@pytest.mark.parametrize("model", ["./nowhere", "/no/where", "a/b/c", "nowhere/", "", Path("nowhere/here")])
def test_no_such_folder(model: str | Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        resolve(model)
    assert caught.value.field == "model"
    assert "there is no folder" in caught.value.problem


@pytest.mark.parametrize("model", ["nobody/no-such-model", "not a hub id"])
def test_neither_folder_nor_known_to_the_hub(model: str) -> None:
    # Tests run offline: the hub answers from an empty cache.
    with pytest.raises(CheckpointError, match="no local folder, and the hub gave no such checkpoint"):
        resolve(model)
