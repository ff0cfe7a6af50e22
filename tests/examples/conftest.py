"""Fixtures of the tests of the example plugin."""

from pathlib import Path

import pytest

from omni.plugin import locate
from omni.plugin.manager import Plugins, load_plugins
from tests.support.entry_points import REPOSITORY, entry_points_of, own_entry_points

HOME = REPOSITORY / "examples" / "plugin"


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Plugins:
    """omni's own plugins and the example's, as its pyproject names it."""
    monkeypatch.syspath_prepend(HOME)
    loaded = load_plugins([*own_entry_points("ar", "local"), *entry_points_of(HOME / "pyproject.toml")])
    assert not [record.error for record in loaded.records if record.error]
    return loaded


@pytest.fixture
def reader_s_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the example installed and its checkpoint `build/bigram` written, on a CPU."""
    home = folder.parent
    (home / "build").mkdir()
    (home / "build" / "bigram").symlink_to(folder)
    points = [*own_entry_points("ar", "local"), *entry_points_of(HOME / "pyproject.toml")]
    monkeypatch.chdir(home)
    monkeypatch.setattr("omni.plugin.manager.entry_points", lambda group: points)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    return home


@pytest.fixture
def folder(plugins: Plugins, tmp_path: Path) -> Path:
    """A checkpoint of the example."""
    write = locate(plugins.families["bigram"].tiny or "", "tiny")
    assert callable(write)
    write(tmp_path / "model", seed=0)
    return tmp_path / "model"
