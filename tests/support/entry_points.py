"""Plugins as a pyproject names them, so that tests need no installed distribution. Imports nothing of omni: programs
of tests replace functions before omni imports them."""

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

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
