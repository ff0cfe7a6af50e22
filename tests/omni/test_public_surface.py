"""The public surface: a snapshot of every public name, and that documents, tutorials and packages keep to it."""

import ast
import re
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path

import pytest
from reference.sources import find, listed, members
from reference.surface import surface

from tests.support.entry_points import REPOSITORY

SNAPSHOT = Path(__file__).with_name("public_surface.txt")
PUBLIC = {module: names for modules in listed().values() for module, names in modules.items()}
EXAMPLES = [
    *(REPOSITORY / "examples").rglob("*.py"),
    *(REPOSITORY / "tests" / "examples" / "plain_tts").rglob("*.py"),
    REPOSITORY / "tests" / "support" / "extensions.py",
]
OWN = re.compile(r"omni(_ar|_encoder|_vocoder|_diffusion|_frames)?(\.|$)")
LISTINGS = sorted((REPOSITORY / "docs").rglob("*.md"))


def private_imports(source: str) -> Iterator[str]:
    """Names of omni that a text imports, and that are not public."""
    for node in ast.walk(ast.parse(source)):
        module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        if isinstance(node, ast.ImportFrom) and OWN.match(module):
            yield from (f"{module}.{alias.name}" for alias in node.names if alias.name not in PUBLIC.get(module, ()))


def test_the_public_names_are_those_of_the_snapshot() -> None:
    changes = list(
        unified_diff(SNAPSHOT.read_text().splitlines(), surface().splitlines(), "snapshot", "sources", "", "", 0)
    )
    assert not changes, "\n".join(("public names changed: see docs/public.md, then run `make surface`", *changes))


def test_the_page_lists_the_public_modules() -> None:
    page = (REPOSITORY / "docs" / "public.md").read_text()
    entries = " ".join(re.findall(r"^- \*\*.*?(?=^- |^$)", page, re.DOTALL | re.MULTILINE))
    shown = re.findall(r"`(omni[\w.]*)`(?: \(([^)]*)\))?", " ".join(entries.split()))
    assert [module for module, _ in shown] == list(PUBLIC)
    for module, chosen in shown:
        names = re.findall(r"`(\w+)`", chosen)
        assert not names or tuple(names) == PUBLIC[module]


def test_members_of_bases_that_are_not_public_are_public() -> None:
    names = {member.name for member in members(find("omni", "Omni"))}
    assert {"generate", "usage", "idle", "pipeline"} <= names
    assert not {name for name in names if name.startswith("_")} - {"__init__"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_examples_import_public_names_only(path: Path) -> None:
    assert not list(private_imports(path.read_text()))


@pytest.mark.parametrize("page", LISTINGS, ids=lambda page: page.name)
def test_listings_import_public_names_only(page: Path) -> None:
    for listing in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        assert not list(private_imports(listing))


def test_a_name_that_is_not_public_is_found() -> None:
    source = "from omni.engine import Engine, EngineOptions\nfrom omni_ar.run.worker import ArWorker\nfrom omni_mine import X\n"
    assert list(private_imports(source)) == ["omni.engine.Engine", "omni_ar.run.worker.ArWorker"]


@pytest.mark.parametrize("root", ["omni", "stages", "connectors", "plugins"])
def test_packages_say_where_public_names_are_listed(root: str) -> None:
    folder = REPOSITORY / root
    packages = [folder / "__init__.py"] if root == "omni" else sorted(folder.glob("*/__init__.py"))
    assert packages
    for package in packages:
        assert "docs/public.md lists the public names" in (ast.get_docstring(ast.parse(package.read_text())) or "")
