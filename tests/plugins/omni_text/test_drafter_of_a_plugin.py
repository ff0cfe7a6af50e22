"""Drafters of a plugin that is not in this repository, from its entry point to the line that `omni run` prints."""

import re
from importlib.metadata import EntryPoint

import pytest
from typer.testing import CliRunner, Result

from omni.cli import app
from tests.support.entry_points import own_entry_points
from tests.support.tiny_text import write_chat_model

MODULE = "tests.plugins.omni_text.echo_drafter"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_chat_model(tmp_path_factory.mktemp("plugin") / "model"))


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [*own_entry_points(), EntryPoint("theirs", MODULE, "omni")]
    monkeypatch.setattr("omni.plugin.manager.entry_points", lambda group: points)


def run(folder: str, *settings: str) -> Result:
    """An answer of few ids, so that one often follows itself."""
    sampling = '{"temperature": 1.0, "allowed_token_ids": [5, 17, 42]}'
    given = [each for setting in (f"text.sampling={sampling}", *settings) for each in ("--set", setting)]
    return CliRunner().invoke(
        app, ("run", folder, "hello", "--max-tokens", "40", "--seed", "3", "--device", "cpu", *given)
    )


@pytest.mark.parametrize("drafter", ["echo", "echo-head"])
def test_it_drafts_and_no_token_changes(drafter: str, folder: str):
    plain = run(folder)
    drafted = run(folder, f"text.drafter={drafter}", "text.draft_tokens=2", "text.adaptive_drafts=false")
    assert (plain.exit_code, drafted.exit_code) == (0, 0), drafted.output
    assert drafted.stdout == plain.stdout
    assert "drafts" not in plain.stderr
    found = re.search(r"tokens per step with drafts \((\d+) of (\d+) accepted, by position", drafted.stderr)
    assert found is not None, drafted.stderr
    assert 0 < int(found[1]) < int(found[2])


REFUSED = [
    ('text.drafter_args={"bak": 1}', r"text\.drafter_args: Object contains unknown field `bak`; see the arguments of"),
    ('text.drafter_args={"back": 13}', rf"{MODULE}:EchoDrafter: .*not thirteen"),
]


@pytest.mark.parametrize(("args", "said"), REFUSED)
def test_its_errors_are_blamed_on_it(args: str, said: str, folder: str):
    result = run(folder, "text.drafter=echo", args)
    assert result.exit_code == 1
    assert re.search(said, result.stderr), result.stderr


def test_omni_plugins_lists_it():
    listed = CliRunner().invoke(app, ("plugins",)).stdout
    assert re.search(r"\becho\b", listed)
    assert "echo-head" in listed
