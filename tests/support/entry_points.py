"""Plugins as a pyproject names them, so that tests need no installed distribution."""

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

from omni.plugin.entries import ModelFamily
from omni.plugin.manager import Plugins, load_plugins

REPOSITORY = Path(__file__).parents[2]
SOURCE_ROOTS = [str(REPOSITORY / root) for root in ("", "plugins", "connectors", "stages")]


def entry_points_of(pyproject: Path) -> list[EntryPoint]:
    """The entry points of the group `omni` in a pyproject.toml."""
    project = tomllib.loads(pyproject.read_text())["project"]
    return [EntryPoint(name, value, "omni") for name, value in project["entry-points"]["omni"].items()]


def own_entry_points(*names: str) -> list[EntryPoint]:
    """Those of this repository called `names`, or all of them."""
    points = entry_points_of(REPOSITORY / "pyproject.toml")
    return [point for point in points if not names or point.name in names]


def plugins_of(*names: str, **modules: str) -> Plugins:
    """The repository's plugins called `names`, all of them if none is named, and others by name and module."""
    points = [EntryPoint(name, module, "omni") for name, module in modules.items()]
    plugins = load_plugins([*own_entry_points(*names), *points])
    for record in plugins.records:
        assert record.error is None, record.error
    return plugins


def family_of(name: str, module: str) -> ModelFamily:
    """The family of a test module with the functions `pipeline` and `write_checkpoint`."""
    return ModelFamily(name=name, model_types=(name,), pipeline=f"{module}:pipeline", tiny=f"{module}:write_checkpoint")
