"""What documents name in the repository is there."""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from support.entry_points import REPOSITORY

DOCUMENTS = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
ROOTS = ("benchmarks", "connectors", "docs", "examples", "omni", "plugins", "scripts", "stages", "tests")
PATH = re.compile(r"`([\w.*/-]+)`")
"""What stands in back ticks by itself; paths are those that have a slash, or end as a module or a document does."""


def named(text: str) -> Iterator[str]:
    for path in PATH.findall(text):
        if "/" in path or path.endswith((".py", ".md")):
            yield path.rstrip("/")


def is_there(path: str, known: list[str]) -> bool:
    """Whole, or as the end of one: documents speak of `omni_ar/kind.py`, and of a `kernel.py` beside others."""
    return any(fnmatchcase(f"/{one}", f"*/{path}") for one in known)


@pytest.fixture(scope="module")
def known() -> list[str]:
    found = (path for root in ROOTS for path in [REPOSITORY / root, *(REPOSITORY / root).rglob("*")])
    return [path.relative_to(REPOSITORY).as_posix() for path in found]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_paths_that_documents_name_are_there(document: Path, known: list[str]) -> None:
    missing = [
        path
        for path in named(document.read_text())
        if not path.startswith(("build/", "/dev/")) and not is_there(path, known)
    ]
    assert not missing, f"{document.name} names {', '.join(missing)}: not in the repository"


def test_a_path_that_is_not_there_is_found(known: list[str]) -> None:
    text = "`omni/none.py`, `stages/omni_ar/run`, `none.py`, `a/b`, `InputError`, `tests/omni/test_none_*.py`, `omni/engine/`"
    missing = [path for path in named(text) if not is_there(path, known)]
    assert missing == ["omni/none.py", "none.py", "a/b", "tests/omni/test_none_*.py"]


def test_the_house_has_all_that_is_in_omni() -> None:
    house = (
        (REPOSITORY / "docs" / "architecture.md").read_text().partition("## The house")[2].partition("\n    stages/")[0]
    )
    shown = set(re.findall(r"(?<=[ ,])([a-z_]+(?:/|\.py)) *(?=,|  )", house))
    there = {path.name for path in (REPOSITORY / "omni").glob("*.py")} - {"__init__.py"}
    there |= {f"{path.parent.name}/" for path in (REPOSITORY / "omni").glob("*/__init__.py")}
    assert shown - {"omni/"} == there
