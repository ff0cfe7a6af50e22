"""The wheel: everything that is to be in it, nothing else, and a program that runs where there is no checkout."""

import json
import tomllib
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest
import soundfile

from tests.installed.environment import ROOTS, omni
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


def test_the_wheel_names_every_plugin_and_what_it_needs(source: Path, wheel: Path) -> None:
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


def test_installed_it_starts_without_the_checkout(installed: Path, tmp_path: Path) -> None:
    assert (installed / "bin" / "omni").is_file()
    records = json.loads(omni(installed, tmp_path, "plugins", "--json"))
    own = {record["name"] for record in records if record["distribution"] == "omni-stages"}
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert own == set(project["entry-points"]["omni"])
    assert all(record["error"] is None for record in records if record["name"] in own)


@pytest.mark.slow
def test_installed_it_answers_without_the_checkout(installed: Path, tmp_path: Path) -> None:
    assert "wrote a tiny qwen3_omni checkpoint" in omni(installed, tmp_path, "tiny", "model", "--family", "qwen3_omni")
    text = omni(installed, tmp_path, "run", "model", "who is it", "--seed", "1", "--max-tokens", "8", "--device", "cpu")
    assert text.strip()
    samples, rate = soundfile.read(tmp_path / "out.wav")
    assert rate == 24000
    assert len(samples) > 0
