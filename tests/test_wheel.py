"""The wheel: everything that is to be in it, nothing else, and a program that runs where there is no checkout."""

import json
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest
import soundfile

from tests.support.entry_points import REPOSITORY
from tests.support.patience import PATIENCE_SECONDS

ROOTS = ("omni", "plugins", "connectors", "stages")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
INSTALLED_ONLY = """
import sys
from importlib.metadata import distribution
sys.path[:0] = {folders}
sys.argv[0] = "omni"
(script,) = distribution("omni-stages").entry_points.select(group="console_scripts", name="omni")
try:
    script.load()()
finally:
    ours = [module for name, module in sys.modules.items() if name.partition("_")[0].partition(".")[0] == "omni"]
    strangers = [module.__file__ for module in ours if not module.__file__.startswith({installed!r})]
    assert ours and not strangers, strangers
    assert not set({roots}) & set(sys.path), sys.path
"""
"""Runs the console script as installed, where `.pth` files, so also an editable installation, have no effect (`-S`)."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources that a wheel is made of. A copy, since a build leaves files, and takes along those that it left before."""
    folder = tmp_path_factory.mktemp("source")
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / file, folder)
    for root in (*ROOTS, "tests", "benchmarks", "examples"):
        shutil.copytree(REPOSITORY / root, folder / root, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    offline = ["--no-deps", "--no-index", "--no-build-isolation"]
    command = [*PIP, "wheel", *offline, "--wheel-dir", str(out), str(source)]
    subprocess.run(command, check=True, timeout=PATIENCE_SECONDS)
    (file,) = out.iterdir()
    return file


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("installed")
    offline = ["--no-deps", "--no-index", "--no-compile"]
    command = [*PIP, "install", *offline, "--target", str(target), str(wheel)]
    subprocess.run(command, check=True, timeout=PATIENCE_SECONDS)
    return target


def packaged(source: Path) -> set[str]:
    """What the four roots hold, as a wheel names it: `omni` is a package, the others hold packages."""
    files = [
        file
        for root in ROOTS
        for file in (source / root).rglob("*")
        if file.suffix in (".py", ".json") or file.name == "py.typed"
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


def omni(installed: Path, folder: Path, *arguments: str) -> str:
    """What the installed program prints, run from another folder."""
    site = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    # The virtual environment may lie in the checkout; its source roots may not be on the path.
    roots = [str(REPOSITORY), *(str(REPOSITORY / root) for root in ROOTS[1:])]
    program = INSTALLED_ONLY.format(folders=[str(installed), *site], installed=f"{installed}/", roots=roots)
    # -I: neither the current folder nor PYTHONPATH; -S: no .pth files.
    command = [sys.executable, "-I", "-S", "-c", program, *arguments]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert ran.returncode == 0, ran.stderr
    assert "run again" not in ran.stderr, "a batch failed"
    return ran.stdout


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
