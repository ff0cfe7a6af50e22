"""Pages of the site's reference: settings, and the public names of each group."""

import ast
import re
from collections.abc import Iterator
from itertools import zip_longest

from reference.public import SETTINGS
from reference.sources import Name, find, listed, members
from reference.surface import heading

_CODE = re.compile(r"(`[^`]*`)")


def pages() -> dict[str, str]:
    """Markdown by path below `docs`."""
    groups = {f"reference/{slug(title)}.md": group_page(title) for title in listed()}
    return {"reference/settings.md": settings_page(), **groups}


def slug(title: str) -> str:
    return re.sub(r"\W+", "_", title.lower())


def group_page(title: str) -> str:
    blocks = [f"# {title}"]
    for module, names in listed()[title].items():
        blocks.append(f"## `{module}`")
        for name in names:
            blocks += _blocks(find(module, name), name)
    return "\n\n".join(blocks) + "\n"


def settings_page() -> str:
    blocks = [
        "# Settings",
        "Fields of the option structs. [configuration.md](../configuration.md) has files, `--set` and precedence.",
    ]
    for path, where in SETTINGS.items():
        module, _, name = where.partition(":")
        found = find(module, name)
        meanings = fields_of(found)
        rows = [
            f"| `{field}` | {_cell(kind)} | {_cell(default)} | {prose(meanings.get(field, '')).replace('|', chr(92) + '|')} |"
            for field, kind, default in _fields(found)
        ]
        table = "\n".join(("| option | type | default | meaning |", "|---|---|---|---|", *rows))
        blocks += [f"## {path}", f"`{module}.{name}`", table]
    return "\n\n".join(blocks) + "\n"


def fields_of(found: Name) -> dict[str, str]:
    """The meaning of each field that a docstring describes, as `name: meaning` or `name, other: meaning`. A text behind the
    field itself comes first."""
    meanings = dict(_described(found.doc, [field for field, _, _ in _fields(found)]))
    return meanings | {member.name: _line(member.doc) for member in members(found) if member.doc}


def prose(text: str) -> str:
    """A docstring as Markdown: what looks like a tag outside of code is not one."""
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in _CODE.split(text))


def _blocks(found: Name, name: str) -> Iterator[str]:
    yield f"### `{name}`"
    yield f"```text\n{heading(found, name)}\n```"
    if found.doc:
        yield prose(found.doc)
    if isinstance(found.node, ast.ClassDef):
        listing = [_bullet(member.text, member.doc) for member in members(found)]
        if listing:
            yield "\n".join(listing)


def _bullet(text: str, doc: str) -> str:
    meaning = f": {prose(_line(doc))}" if doc else ""
    return f"- `{text}`{meaning}"


def _line(doc: str) -> str:
    """The first paragraph, on one line."""
    return " ".join(doc.partition("\n\n")[0].split())


def _cell(text: str) -> str:
    return f"`{text}`".replace("|", "\\|") if text else ""


def _fields(found: Name) -> Iterator[tuple[str, str, str]]:
    """Name, type and default of each annotated field."""
    assert isinstance(found.node, ast.ClassDef)
    for node in found.node.body:
        if isinstance(node, ast.AnnAssign):
            yield ast.unparse(node.target), ast.unparse(node.annotation), ast.unparse(node.value) if node.value else ""


def _described(doc: str, fields: list[str]) -> Iterator[tuple[str, str]]:
    one = "|".join(map(re.escape, fields))
    starts = list(re.finditer(rf"(?:^|(?<=\s))((?:{one})(?:, (?:{one}))*):\s", doc))
    for start, after in zip_longest(starts, starts[1:]):
        meaning = doc[start.end() : after.start() if after else len(doc)]
        for field in start[1].split(", "):
            yield field, _line(meaning)
