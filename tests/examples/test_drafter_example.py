"""The drafter that docs/speculative.md shows: as the page shows it, and used by the command there."""

import re
import shlex
from importlib.metadata import EntryPoint

import pytest
from typer.testing import CliRunner

from omni.cli import app
from tests.support.entry_points import REPOSITORY, entry_points_of, own_entry_points
from tests.support.tiny_text import write_chat_model

pytestmark = pytest.mark.thorough
HOME = REPOSITORY / "examples" / "drafter"
PAGE = (REPOSITORY / "docs" / "speculative.md").read_text().partition("## Writing a drafter")[2]


def points(*, group: str) -> list[EntryPoint]:
    return [*own_entry_points(), *entry_points_of(HOME / "pyproject.toml")]


def test_the_page_shows_the_drafter_as_it_is() -> None:
    listings = re.findall(r"^`omni_usual/(\w+\.py)`: [^\n]*\n\n```python\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)
    assert dict(listings) == {name: (HOME / "omni_usual" / name).read_text() for name in ("drafter.py", "plugin.py")}
    (pyproject,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert pyproject in (HOME / "pyproject.toml").read_text()


def test_the_command_of_the_page_drafts(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(HOME)
    monkeypatch.setattr("omni.plugin.manager.entry_points", points)
    (command,) = re.findall(r"^    omni (run .*drafter=usual.*)$", PAGE, re.MULTILINE)
    folder = write_chat_model(tmp_path_factory.mktemp("usual") / "model")
    words = [str(folder) if "/" in word else word for word in shlex.split(command)]
    sampling = '{"temperature": 1.0, "allowed_token_ids": [5, 17, 42]}'
    common = ("--max-tokens", "40", "--seed", "3", "--device", "cpu", "--set", f"text.sampling={sampling}")
    plain = CliRunner().invoke(app, (*words[:3], *common))
    drafted = CliRunner().invoke(app, (*words, *common))
    assert (plain.exit_code, drafted.exit_code) == (0, 0), drafted.output
    assert drafted.stdout == plain.stdout
    found = re.search(r"tokens per step with drafts \((\d+) of (\d+) accepted", drafted.stderr)
    assert found is not None, drafted.stderr
    assert 0 < int(found[1]) < int(found[2])
