"""What commands find: the plugins of the echo family and the local connector, and a model of that family."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from tests.support.echo_family import echo_model
from tests.support.echo_plugin import POINT
from tests.support.entry_points import own_entry_points


@pytest.fixture
def points() -> list[EntryPoint]:
    return [POINT, *own_entry_points("local")]


@pytest.fixture
def installed(points: list[EntryPoint], monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """The entry points that commands find. A test may change them."""
    monkeypatch.setattr("omni.plugin.manager.entry_points", lambda group: points)
    return points


@pytest.fixture
def with_broken(installed: list[EntryPoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_plugin.py").write_text("import nothing_of_this_name\n")
    monkeypatch.syspath_prepend(tmp_path)
    installed.append(EntryPoint("broken", "broken_plugin", "omni"))


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(echo_model(tmp_path))
