"""Links of documents on the site: those within docs stay, those that leave docs lead to pages that show the sources."""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from reference.sources import REPOSITORY

DOCS = REPOSITORY / "docs"
START = REPOSITORY / "README.md"
COPIED = (".png", ".svg", ".wav", ".json")
"""Endings of files that are copied as they are."""
_FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(\]\(|^\[[^\]]+\]: )([^)\s]+)", re.MULTILINE)
_LANGUAGES = {".py": "python", ".toml": "toml", ".md": "markdown", ".yml": "yaml"}


def with_moved_links(markdown: str, path: str) -> str:
    """A document with the links of its page, which is at `path` below docs."""
    document = START if path == "index.md" else DOCS / path
    return "".join(
        part if part.startswith("```") else _LINK.sub(lambda link: link[1] + moved(link[2], document, path), part)
        for part in _FENCED.split(markdown)
    )


def outside() -> list[Path]:
    """Files and folders beyond docs that documents link to, and the files of those folders."""
    linked = {target for document in documents() for target in targets(document)}
    # What is not there gets no page: MkDocs reports the link.
    found = {target for target in linked if target.exists() and not is_document(target)}
    return sorted(found | {file for folder in found if folder.is_dir() for file in files_of(folder)})


def documents() -> list[Path]:
    return [START, *sorted(DOCS.rglob("*.md"))]


def targets(document: Path) -> Iterator[Path]:
    """Files and folders that a document links to."""
    for part in _FENCED.split(document.read_text()):
        if not part.startswith("```"):
            for _, link in _LINK.findall(part):
                target = link.partition("#")[0]
                if target and ":" not in target:
                    yield (document.parent / target).resolve()


def is_document(target: Path) -> bool:
    return target == START or target.is_relative_to(DOCS)


def files_of(folder: Path) -> Iterable[Path]:
    """Texts of a folder, without what an installation leaves there."""
    return (path for path in sorted(folder.rglob("*")) if path.suffix in _LANGUAGES and ".egg-info" not in str(path))


def shown(source: Path) -> str:
    """The page of a file: its text. Of a folder: links to its files."""
    name = source.relative_to(REPOSITORY).as_posix()
    if source.is_dir():
        lines = (f"- [{path.relative_to(source).as_posix()}]({relative(path, source)})" for path in files_of(source))
        return "\n".join((f"# {name}\n", *lines)) + "\n"
    language = _LANGUAGES.get(source.suffix, "text")
    return f"# {name}\n\n`````{language}\n{source.read_text()}\n`````\n"


def site_path(source: Path) -> str:
    """Below docs: the place of a document or of the page of another file."""
    if source == START:
        return "index.md"
    if source.is_relative_to(DOCS):
        return source.relative_to(DOCS).as_posix()
    name = source.relative_to(REPOSITORY).as_posix()
    return f"source/{name}" if source.suffix in COPIED else f"source/{name}.md"


def moved(link: str, document: Path, path: str) -> str:
    """A link of a document, as one of the page at `path`."""
    target, hash_, anchor = link.partition("#")
    if not target or ":" in target:
        return link
    return _relative(site_path((document.parent / target).resolve()), path) + hash_ + anchor


def relative(source: Path, page: Path) -> str:
    return _relative(site_path(source), site_path(page))


def _relative(target: str, page: str) -> str:
    return os.path.relpath(target, PurePosixPath(page).parent)
