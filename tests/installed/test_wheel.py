"""The wheel: everything that is to be in it, nothing else, and a program that runs where there is no checkout."""

import json
import tomllib
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest
import soundfile

from tests.installed.environment import ROOTS, Environment, build_wheel
from tests.support.entry_points import REPOSITORY


def packaged(source: Path) -> set[str]:
    """What the four roots hold, as a wheel names it: `omni` is a package, the others hold packages."""
    files = [
        file
        for root in ROOTS
        for file in (source / root).rglob("*")
        if file.suffix in (".py", ".json", ".tmpl", ".html", ".css", ".js", ".svg") or file.name == "py.typed"
    ]
    bases = {root: source if root == "omni" else source / root for root in ROOTS}
    return {file.relative_to(bases[file.relative_to(source).parts[0]]).as_posix() for file in files}


def metadata(wheel: Path) -> tuple[Message, str]:
    """METADATA and entry_points.txt."""
    with zipfile.ZipFile(wheel) as archive:
        (folder,) = {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        texts = [archive.read(f"{folder}/{name}").decode() for name in ("METADATA", "entry_points.txt")]
    return message_from_string(texts[0]), texts[1]


def test_the_wheel_holds_the_four_roots_and_nothing_else(source: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == packaged(source)
    tops = {name.partition("/")[0] for name in held}
    assert {f"{top}/py.typed" for top in tops} <= held


def test_the_wheel_names_every_plugin_and_its_requirements(source: Path, wheel: Path) -> None:
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    about, points = metadata(wheel)
    assert (about["Name"], about["Version"]) == ("omni-stages", project["version"])
    assert about["License-Expression"] == project["license"]
    needed = [line for line in about.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert sorted(needed) == sorted(project["dependencies"])
    for name, module in project["entry-points"]["omni"].items():
        assert f"\n{name} = {module}\n" in points
    packages = {path.parent.name for root in ROOTS[1:] for path in (source / root).glob("*/plugin.py")}
    assert {module.partition(".")[0] for module in project["entry-points"]["omni"].values()} == packages


FOUND = """
import json, sys
from importlib import import_module, metadata

files = {name: import_module(name).__file__ for name in sys.argv[1:]}
homes = [str(each.locate_file("")) for each in metadata.distributions(name="omni-stages")]
print(json.dumps({"files": files, "homes": homes, "path": sys.path}))
"""


def test_omni_and_its_plugins_lie_in_the_fresh_environment(installed: Environment, wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" not in name}
    found = json.loads(installed.python(FOUND, tmp_path, *sorted(tops)))
    assert found["files"] == {name: str(installed.site / name / "__init__.py") for name in tops}
    assert found["homes"] == [str(installed.site)]
    in_checkout = [path for path in found["path"] if Path(path).resolve().is_relative_to(REPOSITORY)]
    assert not in_checkout, "modules of the checkout could be imported"


def test_the_wheels_requirements_are_installed(installed: Environment, tmp_path: Path) -> None:
    assert installed.unsatisfied(tmp_path) == []


def test_a_requirement_that_is_missing_or_old_is_found(tmp_path: Path) -> None:
    for folder in ("planted", "wheel", "environment"):
        (tmp_path / folder).mkdir()
    project = {"name": "omni-planted", "version": "1", "dependencies": ["omni-nowhere", "numpy<1"]}
    lines = [f"{name} = {json.dumps(value)}" for name, value in project.items()]
    (tmp_path / "planted" / "pyproject.toml").write_text("\n".join(["[project]", *lines, ""]))
    planted = Environment(tmp_path / "environment", build_wheel(tmp_path / "planted", tmp_path / "wheel"))
    missing, old = sorted(planted.unsatisfied(tmp_path), key=lambda line: "numpy" in line)
    assert missing.startswith("omni-planted 1 requires omni-nowhere, which is not installed")
    assert old.startswith("omni-planted 1 has requirement numpy<1, but you have numpy ")


def test_the_installed_wheel_lists_its_plugins_without_the_checkout(installed: Environment, tmp_path: Path) -> None:
    records = json.loads(installed.omni(tmp_path, "plugins", "--json"))
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert {record["name"] for record in records} == set(project["entry-points"]["omni"])
    assert {record["distribution"] for record in records} == {"omni-stages"}
    assert all(record["error"] is None for record in records)


@pytest.mark.slow
def test_the_installed_wheel_answers_without_the_checkout(installed: Environment, tmp_path: Path) -> None:
    assert "wrote a tiny qwen3_omni checkpoint" in installed.omni(tmp_path, "tiny", "model", "--family", "qwen3_omni")
    text = installed.omni(tmp_path, "run", "model", "who is it", "--seed", "1", "--max-tokens", "8", "--device", "cpu")
    assert text.strip()
    samples, rate = soundfile.read(tmp_path / "out.wav")
    assert rate == 24000
    assert len(samples) > 0
