"""`omni new`: the distributions that it writes, and its refusals. tests/installed runs their own tests."""

import ast
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from omni.cli import app
from omni.cli.new.distribution import files
from omni.cli.new.kind import Kind
from omni.plugin.manager import Plugins, load_plugins
from tests.support.entry_points import REPOSITORY, entry_points_of, own_entry_points

pytestmark = pytest.mark.usefixtures("installed")

EXAMPLES = {
    Kind.FAMILY: "pocket",
    Kind.STAGE: "scorer",
    Kind.CONNECTOR: "inline",
    Kind.PROCESSOR: "variety",
    Kind.DRAFTER: "usual",
}
"""The names of the distributions in `examples/`."""


@pytest.fixture(autouse=True)
def no_example_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests import them."""
    packages = {f"omni_{name}" for name in EXAMPLES.values()}
    monkeypatch.setattr(
        "omni.cli.new.distribution.find_spec", lambda name: None if name in packages else find_spec(name)
    )


def new(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["new", *arguments])


def refused(*arguments: str) -> str:
    """The one line that the failing command prints."""
    result = new(*arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    return line.removeprefix("error: ")


def contents(folder: Path) -> dict[str, str]:
    """The files below a folder that are not made of others."""
    made = {"__pycache__", "build"}
    paths = [path for path in folder.rglob("*") if path.is_file() and not made & {*path.parts}]
    return {p.relative_to(folder).as_posix(): p.read_text() for p in paths if ".egg-info" not in str(p)}


def registered(kind: Kind, plugins: Plugins) -> list[Mapping[str, object]]:
    """Registries with the name of such a distribution."""
    match kind:
        case Kind.FAMILY:
            return [plugins.families.entries, plugins.model_types]
        case Kind.STAGE:
            return [plugins.kinds.entries, plugins.extensions.entries]
        case Kind.CONNECTOR:
            return [plugins.connectors.entries]
        case Kind.PROCESSOR:
            return [plugins.processors.entries]
        case Kind.DRAFTER:
            return [plugins.drafters.entries]


@pytest.mark.parametrize("kind", Kind)
def test_the_examples_equal_the_written_files(kind: Kind, tmp_path: Path) -> None:
    result = new(kind, EXAMPLES[kind], "--into", str(tmp_path / "deep" / "down"))
    made = tmp_path / "deep" / "down" / f"omni-{EXAMPLES[kind]}"
    assert result.exit_code == 0
    assert result.stdout.startswith(f"wrote {made}; next:\n    cd {made}\n    pip install -e '.[test]'\n")
    remedy = f"edit omni/cli/new/templates/{kind}, then run `make examples`"
    assert contents(made) == contents(REPOSITORY / "examples" / kind), remedy


@pytest.mark.parametrize("kind", Kind)
def test_any_name_is_registered(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"second_{kind}_2"
    assert new(kind, name, "--into", str(tmp_path)).exit_code == 0
    made = tmp_path / f"omni-second-{kind}-2"
    monkeypatch.syspath_prepend(made)
    (point,) = entry_points_of(made / "pyproject.toml")
    plugins = load_plugins([point])
    assert [(record.error, record.warnings) for record in plugins.records] == [(None, ())]
    assert all(name in names for names in registered(kind, plugins))


@pytest.mark.parametrize("kind", Kind)
def test_no_other_name_is_left(kind: Kind) -> None:
    made = files(kind, name := "second_try_2")
    words = {EXAMPLES[kind], EXAMPLES[kind].capitalize(), "$"}
    assert not [(path, word) for path, text in made.items() for word in words if word in path or word in text]
    modules = {path: ast.parse(text) for path, text in made.items() if path.endswith(".py")}
    assert {f"omni_{name}/plugin.py", f"test_{name}.py"} < modules.keys()
    assert {f"omni_{name}/py.typed", "README.md", "pyproject.toml"} == made.keys() - modules.keys()


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        (
            "family",
            "My-Model",
            "'My-Model' is not a name of a plugin; use lowercase letters, digits and single .* my_model",
        ),
        ("family", "3d", "'3d' is not a name of a plugin; .* as in d"),
        ("family", "a__b", "'a__b' is not a name of a plugin; .* as in a_b"),
        ("family", "mine\n", r"'mine\\n' is not a name of a plugin; .* as in mine"),
        ("family", "", "'' is not a name of a plugin; .* as in my_plugin"),
        ("family", "../up", r"'../up' is not a name of a plugin; .* as in up"),
        ("family", "x" * 41, "has 41 letters; use at most 40"),
        ("family", "echo", "'echo' is a model family of 'echo'; use another name"),
        ("stage", "tone", "'tone' is a stage kind of 'echo'; use another name"),
        ("connector", "local", "'local' is a connector of 'local'; use another name"),
        ("processor", "stages", "a distribution omni-stages is installed; use another name"),
        ("processor", "frames", "a module omni_frames is installed; use another name"),
    ],
)
def test_names_that_are_refused(kind: str, name: str, message: str, tmp_path: Path) -> None:
    line = refused(kind, name, "--into", str(tmp_path / "new"))
    assert re.fullmatch(f"NAME: {message}", line), line
    assert not list(tmp_path.iterdir())


def test_names_of_drafters_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni.plugin.manager.entry_points", lambda group: own_entry_points("ar"))
    line = refused("drafter", "ngram", "--into", str(tmp_path))
    assert line == "NAME: 'ngram' is a drafter of 'ar'; use another name"


@pytest.mark.parametrize("existing", ["empty folder", "file", "broken link"])
def test_existing_files_stay(existing: str, tmp_path: Path) -> None:
    folder = tmp_path / "omni-mine"
    match existing:
        case "empty folder":
            folder.mkdir()
        case "file":
            folder.write_text("mine")
        case _:
            folder.symlink_to(tmp_path / "nowhere")
    problem = "exists already; use another name, or give another folder with --into"
    assert refused("family", "mine", "--into", str(tmp_path)) == f"{folder}: {problem}"
    assert [*tmp_path.iterdir()] == [folder]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    line = refused("stage", "mine", "--into", str(tmp_path / "file"))
    assert line.endswith(
        "omni-mine: cannot be written (Not a directory); give a folder that can be written with --into"
    )


def test_unknown_kinds_are_refused() -> None:
    result = new("gadget", "mine")
    assert result.exit_code == 2
    assert all(kind in result.stderr for kind in Kind)
