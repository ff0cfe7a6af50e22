"""The public surface: a snapshot of every public name, and that documents, tutorials and packages keep to it."""

import ast
import re
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path
from textwrap import dedent

import pytest
from reference.sources import find, listed, members
from reference.surface import surface

from omni.cli.new.distribution import files
from omni.cli.new.kind import Kind
from tests.support.entry_points import REPOSITORY, SOURCE_ROOTS

SNAPSHOT = Path(__file__).with_name("public_surface.txt")
PUBLIC = {module: names for modules in listed().values() for module, names in modules.items()}
EXAMPLES = [*(REPOSITORY / "examples").rglob("*.py")]
TEMPLATES = {
    f"{kind}/{path}": text for kind in Kind for path, text in files(kind, "mine").items() if path.endswith(".py")
}
PACKAGES = [path.parent.name for root in SOURCE_ROOTS[1:] for path in Path(root).glob("*/__init__.py")]
OWN = re.compile(rf"(omni|{'|'.join(PACKAGES)})(\.|$)")
"""The modules of this repository's wheel."""
PATH = re.compile(r"(\w+(?:\.\w+)*):(\w+)")
"""An import path, as pipelines and hooks have them."""
LISTINGS = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]


def private_imports(source: str) -> Iterator[str]:
    """Names of omni and of its plugins that a text imports, or names by an import path, and that are not public."""
    for module, name in _named(ast.parse(source)):
        public = name in PUBLIC.get(module, ()) if name else module in PUBLIC
        if OWN.match(module) and not public:
            yield f"{module}.{name}".removesuffix(".")


def _named(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Modules, each with a name of it; an empty name is the module itself."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                yield from ((module, alias.name) for alias in names)
            case ast.Import(names=names):
                yield from ((alias.name, "") for alias in names)
            case ast.Constant(value=str(text)) if path := PATH.fullmatch(text):
                yield path[1], path[2]


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
        assert not list(private_imports(dedent(listing)))


@pytest.mark.parametrize("path", TEMPLATES)
def test_templates_import_public_names_only(path: str) -> None:
    assert not list(private_imports(TEMPLATES[path]))


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from omni.engine import Engine, EngineOptions", ["omni.engine.Engine"]),
        ("from omni_ar.run.worker import ArWorker", ["omni_ar.run.worker.ArWorker"]),
        ("from omni_text.tiny import TinyShape, write_tiny", ["omni_text.tiny.TinyShape"]),
        ("from omni_shm.connector import SharedMemoryConnector", ["omni_shm.connector.SharedMemoryConnector"]),
        ("import omni.engine, omni.engine.build", ["omni.engine.build"]),
        ("kind = 'omni_ar.kind:ArStageKind'", ["omni_ar.kind.ArStageKind"]),
        ("adapter = 'omni_ar.adapters:FramesToCodes'", []),
        ("from omni_mine import X\nstage = 'omni_mine.model:build'", []),
    ],
)
def test_a_name_that_is_not_public_is_found(source: str, found: list[str]) -> None:
    assert list(private_imports(source)) == found


@pytest.mark.parametrize("root", ["omni", "stages", "connectors", "plugins"])
def test_packages_say_where_public_names_are_listed(root: str) -> None:
    folder = REPOSITORY / root
    packages = [folder / "__init__.py"] if root == "omni" else sorted(folder.glob("*/__init__.py"))
    assert packages
    for package in packages:
        assert "docs/public.md lists the public names" in (ast.get_docstring(ast.parse(package.read_text())) or "")
