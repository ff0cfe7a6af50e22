"""One class for each public name, outside of tests."""

import ast
from collections import defaultdict
from pathlib import Path

from tests.support.entry_points import REPOSITORY

FOLDERS = ("omni", "stages", "connectors", "plugins", "benchmarks", "scripts")
FAMILIES = REPOSITORY / "plugins"
LAYERS = {"FeedForward", "GatedMLP", "RMSNorm"}
"""Layers of the literature. Each stage kind has its own for its shapes: kinds do not import each other."""


def test_each_class_has_a_name_of_its_own():
    places = defaultdict[str, list[Path]](list)
    for folder in FOLDERS:
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and node.name[0] != "_" and node.name not in LAYERS:
                    places[node.name].append(path)
    assert len(places) > 500
    # Families have the same parts, each in a package of its own.
    assert not {
        name: [str(path.relative_to(REPOSITORY)) for path in paths]
        for name, paths in places.items()
        if len(paths) > 1 and not _one_for_each_family(paths)
    }


def _one_for_each_family(paths: list[Path]) -> bool:
    families = [path.relative_to(FAMILIES).parts[0] for path in paths if path.is_relative_to(FAMILIES)]
    return len(set(families)) == len(paths)
