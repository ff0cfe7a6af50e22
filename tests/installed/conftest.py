"""Fixtures of the tests of what is installed: omni's wheel, made and installed once."""

import shutil
from pathlib import Path

import pytest

from tests.installed.environment import ROOTS, Environment, build_wheel
from tests.support.entry_points import REPOSITORY


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources that a wheel is made of. A copy, since a build leaves files, and takes along those that it left before."""
    folder = tmp_path_factory.mktemp("source")
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / file, folder)
    for root in (*ROOTS, "tests", "benchmarks", "examples"):
        shutil.copytree(REPOSITORY / root, folder / root, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    return folder


@pytest.fixture(scope="session")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with omni and no other plugin."""
    return Environment(tmp_path_factory.mktemp("installed"), wheel)
