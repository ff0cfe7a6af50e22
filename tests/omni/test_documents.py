"""Documents: the paths, links and names in them exist, and their lines are short."""

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

from tests.support.entry_points import REPOSITORY

PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "benchmarks" / "README.md",
    *sorted((REPOSITORY / "docs").rglob("*.md")),
]
CHANGELOG = REPOSITORY / "CHANGELOG.md"
DOCUMENTS = [*PAGES, REPOSITORY / "CONTRIBUTING.md", CHANGELOG]
LONGEST_LINE = 100
ROOTS = ("benchmarks", "connectors", "deploy", "docs", "examples", "omni", "plugins", "scripts", "stages", "tests")
PATH = re.compile(r"`([\w.*/-]+)`")
"""A code span; it is a path if it has a slash, or the ending of a module or a document."""
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\](?:\(([^)\s]+)\)|: (\S+))")
"""An inline link, or the definition of a reference: its text and its target."""


def named(text: str) -> Iterator[str]:
    for path in PATH.findall(text):
        if "/" in path or path.endswith((".py", ".md")):
            yield path.rstrip("/")


def is_there(path: str, known: list[str]) -> bool:
    """Whole, or as the end of one: documents name `omni_ar/kind.py`, and a `kernel.py` beside others."""
    return any(fnmatchcase(f"/{one}", f"*/{path}") for one in known)


@pytest.fixture(scope="module")
def known() -> list[str]:
    found = [path for root in ROOTS for path in [REPOSITORY / root, *(REPOSITORY / root).rglob("*")]]
    found += [path for path in REPOSITORY.iterdir() if path.is_file()]
    return [path.relative_to(REPOSITORY).as_posix() for path in found]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_paths_that_documents_name_are_there(document: Path, known: list[str]) -> None:
    missing = [
        path
        for path in named(document.read_text())
        if not path.startswith(("build/", "/dev/", ".ci/", ".github/", ".venv/")) and not is_there(path, known)
    ]
    assert not missing, f"{document.name} names {', '.join(missing)}: not in the repository"


def test_a_path_that_is_not_there_is_found(known: list[str]) -> None:
    text = "`omni/none.py`, `stages/omni_ar/run`, `none.py`, `a/b`, `InputError`, `tests/omni/test_none_*.py`, `omni/engine/`"
    missing = [path for path in named(text) if not is_there(path, known)]
    assert missing == ["omni/none.py", "none.py", "a/b", "tests/omni/test_none_*.py"]


def links(document: Path) -> Iterator[tuple[str, Path, str]]:
    """Of each relative link: its text, file and anchor."""
    for text, inline, reference in LINK.findall(FENCED.sub("", document.read_text())):
        target, _, anchor = (inline or reference).partition("#")
        if not target.startswith(("http:", "https:")):
            yield text, (document.parent / target).resolve() if target else document, anchor


@cache
def anchors(document: Path) -> frozenset[str]:
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", document.read_text()), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


@cache
def names(source: Path) -> frozenset[str]:
    """Names that a module defines, members of its classes as `Class.member`."""
    return frozenset(_names(ast.parse(source.read_text()), ""))


def _names(scope: ast.AST, prefix: str) -> Iterator[str]:
    for node in ast.iter_child_nodes(scope):
        match node:
            case ast.ClassDef(name=name):
                yield prefix + name
                yield from _names(node, f"{prefix}{name}.")
            case ast.FunctionDef(name=name):
                yield prefix + name
                if name == "__init__":
                    yield from _names(node, prefix)
            case ast.AnnAssign(target=target):
                yield prefix + ast.unparse(target).removeprefix("self.")
            case ast.Assign(targets=targets):
                yield from (prefix + ast.unparse(target).removeprefix("self.") for target in targets)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_links_lead_to_files_headings_and_names(document: Path) -> None:
    for text, file, anchor in links(document):
        assert file.exists(), f"{document.name}: {text} leads to {file}"
        if anchor:
            assert anchor in anchors(file), f"{document.name}: {file.name} has no heading #{anchor}"
        if file.suffix == ".py":
            missing = {name for name in re.findall(r"`([\w.]+)`", text) if "/" not in name} - names(file)
            assert not missing, f"{document.name}: {file} defines no {', '.join(missing)}"


CLAIM = re.compile(r"`([A-Z]\w*[a-z]\w*)`(?: \([^)]*\))? (?:in|of) `([\w/]+/[\w/]*(?:\.py)?|\w+\.py)`")
"""A class and the module or folder that it is in: "`Name` in `path`"."""
ROW = re.compile(r"^\| ((?:`\w+`(?:, )?)+) \|.*\| `([\w/]+/[\w/]*(?:\.py)?)` \|$", re.MULTILINE)
"""A table row of names, their role, and the module or folder that they are in."""


def places(text: str) -> set[tuple[str, str]]:
    prose = FENCED.sub("", text)
    rows = {(name, path) for cell, path in ROW.findall(prose) for name in re.findall(r"\w+", cell)}
    return rows | set(CLAIM.findall(re.sub(r"\s+", " ", prose)))


def misplaced(text: str) -> list[str]:
    return [f"{name} in {path}" for name, path in sorted(places(text)) if not is_defined_in(path.rstrip("/"), name)]


def is_defined_in(path: str, name: str) -> bool:
    """Whether a module of that path, or a module in a folder of that path, defines the name."""
    return any(name in names(source) for source in sources() if f"/{path}/" in f"{source.as_posix()}/")


@cache
def sources() -> tuple[Path, ...]:
    return tuple(source for root in ROOTS for source in (REPOSITORY / root).rglob("*.py"))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_classes_are_in_the_modules_that_documents_name(document: Path) -> None:
    wrong = misplaced(document.read_text())
    assert not wrong, f"{document.name}: {', '.join(wrong)}, which does not define it"


def test_a_class_in_another_module_is_found() -> None:
    row = "| `Ref`, `Lease` | a payload under way | `omni/stage/messages.py` |"
    prose = "`Ref` (a payload) in\n`omni/stage/messages.py`, `Ref` of `connector/base.py`, `Ref` in `omni/connector/`"
    assert misplaced(row) == misplaced(prose) == ["Ref in omni/stage/messages.py"]


def pages_for_plugin_authors() -> list[Path]:
    """Pages before those of the reference and of the inside, by the navigation of the site."""
    nav = (REPOSITORY / "mkdocs.yml").read_text().partition("\nnav:\n")[2].partition("  - Reference:")[0]
    return [
        REPOSITORY / "docs" / page for page in re.findall(r"([\w/]+\.md)$", nav, re.MULTILINE) if page != "index.md"
    ]


TEST_CODE = re.compile(r"\btests/\w|\b(?:from|import) tests\b|\btests\.\w+\.")
"""The path, import or name of code that is not installed with omni."""


@pytest.mark.parametrize("page", pages_for_plugin_authors(), ids=lambda page: page.name)
def test_pages_for_plugin_authors_need_no_code_of_tests(page: Path) -> None:
    assert not TEST_CODE.findall(page.read_text()), "move it to omni.testing or examples, and name that"


def test_code_of_tests_is_found() -> None:
    assert {page.name for page in pages_for_plugin_authors()} >= {"concepts.md", "pcm.md", "stage.md", "simulation.md"}
    for text in ("[`x`](../tests/support/x.py)", "from tests.support import x", "`tests.support.exact.served`"):
        assert TEST_CODE.search(text)
    assert not TEST_CODE.search("Its tests pass. latests/x, tests and README, omni.testing.faults")


NAME = re.compile(r"`([A-Za-z_][\w.]*)`")


@cache
def words_of_the_code() -> frozenset[str]:
    sources = [path for root in ROOTS for path in (REPOSITORY / root).rglob("*.py")]
    return frozenset(word for path in sources for word in re.findall(r"\w+", f"{path} {path.read_text()}"))


def unknown_names(text: str) -> list[str]:
    return [name for name in NAME.findall(FENCED.sub("", text)) if not words_of_the_code().issuperset(name.split("."))]


LESSONS = [page for page in PAGES if page.parent.name in ("howto", "tutorials")]


@pytest.mark.parametrize("page", LESSONS, ids=lambda page: page.name)
def test_tutorials_name_what_the_code_has(page: Path) -> None:
    assert not unknown_names(page.read_text())


def test_a_name_that_the_code_lacks_is_found() -> None:
    lacking = "_".join(("no", "such", "name"))
    assert unknown_names(f"`NextTokens`, `omni.stage`, `{lacking}`, `omni.{lacking}`") == [lacking, f"omni.{lacking}"]


def test_the_glossary_is_sorted_and_each_term_has_a_link() -> None:
    text = (REPOSITORY / "docs" / "glossary.md").read_text()
    rows = re.findall(r"^\| (.+?) \| .+ \| \[`([\w.]+)`\] \|$", text, re.MULTILINE)
    terms = [term for term, _ in rows]
    assert terms == sorted(terms, key=str.lower)
    assert len(rows) == text.count("\n| ") - 1
    assert {name for _, name in rows} == set(re.findall(r"^\[`([\w.]+)`\]: ", text, re.MULTILINE))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_lines_are_short(document: Path) -> None:
    """Also those of code blocks: they are read in the same column."""
    assert not [line for line in document.read_text().splitlines() if len(line) > LONGEST_LINE]


def not_one_line_an_entry(changelog: str) -> list[str]:
    """Lines below the introduction that are neither a heading nor a whole entry, and entries that are too long."""
    lines = "".join(changelog.partition("\n## ")[1:]).splitlines()
    return [line for line in lines if line and (not line.startswith(("#", "- ")) or len(line) > LONGEST_LINE)]


def test_every_entry_of_the_changelog_is_one_short_line() -> None:
    assert "\n- " in CHANGELOG.read_text()
    assert not not_one_line_an_entry(CHANGELOG.read_text())


def test_an_entry_of_two_lines_or_a_long_one_is_found() -> None:
    long = f"- {'x' * (LONGEST_LINE - 1)}"
    text = f"# Changelog\n\nText.\n\n## [Unreleased]\n\n### Added\n\n- One\n  entry.\nMore.\n{long}\n{long[:-1]}\n- Last.\n"
    assert not_one_line_an_entry(text) == ["  entry.", "More.", long]


def test_the_paths_of_the_tour_are_short() -> None:
    """Leaves count. `tests/plugins/omni_qwen3_omni/test_tour.py` compares the files with those of a request."""
    paths = (REPOSITORY / "docs" / "tour.md").read_text().partition("## Files of three paths")[2].split("\n- **")[1:]
    counts = []
    for path in paths:
        in_thread, _, in_process = path.partition("\n\n")[0].partition("In an engine process:")
        own, _, passed_on = re.sub(r"\s+", " ", in_thread).partition("Passed on by:")
        counts.append(tuple(len(LINK.findall(part)) for part in (own, passed_on, in_process)))
        assert f", {counts[-1][0]} files, and {counts[-1][1]} that pass it on:" in re.sub(r"\s+", " ", path)
    assert counts == [(14, 4, 4), (10, 3, 4), (12, 3, 0)]


def test_the_architecture_lists_every_package_of_omni() -> None:
    text = (REPOSITORY / "docs" / "architecture.md").read_text()
    packages = text.partition("## Packages")[2].partition("\n    stages/")[0]
    shown = set(re.findall(r"(?<=[ ,])([a-z_]+(?:/|\.py)) *(?=,|  )", packages))
    there = {path.name for path in (REPOSITORY / "omni").glob("*.py")} - {"__init__.py"}
    there |= {f"{path.parent.name}/" for path in (REPOSITORY / "omni").glob("*/__init__.py")}
    assert shown - {"omni/"} == there
