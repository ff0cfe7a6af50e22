"""Reads names out of sources: signatures, members and docstrings."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from reference.public import GROUPS

REPOSITORY = Path(__file__).resolve().parents[2]
ROOTS = (REPOSITORY, REPOSITORY / "stages", REPOSITORY / "plugins")
_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign | ast.AnnAssign


@dataclass(frozen=True)
class Name:
    """home: the module that defines it. doc: its docstring, or the text behind an assignment."""

    home: str
    name: str
    node: _Definition
    doc: str


@dataclass(frozen=True)
class Member:
    """A method, a property or a field of a class. text: its name with signature, or with type and default."""

    name: str
    text: str
    doc: str


def listed() -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """Public names by group and module."""
    return {group: {_module(entry): names_of(entry) for entry in entries} for group, entries in GROUPS.items()}


def names_of(entry: str) -> tuple[str, ...]:
    """Names of an entry of `GROUPS`: those after the colon, else `__all__`, else all that the module defines."""
    module, _, chosen = entry.partition(":")
    if chosen:
        return tuple(chosen.split())
    tree = parse(module)
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return tuple(ast.literal_eval(node.value))
    return tuple(sorted(name for name in definitions(module) if not name.startswith("_")))


def find(module: str, name: str) -> Name:
    """The definition, where the module defines or imports it. Raises KeyError if it does neither."""
    here = definitions(module)
    if name in here:
        node, doc = here[name]
        return Name(module, name, node, doc)
    return find(*imported(module)[name])


def members(found: Name) -> Iterator[Member]:
    """Public members of a class, with those of bases that are not public themselves."""
    seen: set[str] = set()
    for node in _own_and_private_bases(found):
        for name, text, doc in _members(node):
            if name not in seen:
                seen.add(name)
                yield Member(name, text, doc)


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Name, arguments and result, without `self`."""
    arguments = ast.unparse(node.args).removeprefix("self").removeprefix("cls").removeprefix(", ")
    result = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"{'async ' if isinstance(node, ast.AsyncFunctionDef) else ''}{node.name}({arguments}){result}"


@cache
def parse(module: str) -> ast.Module:
    return ast.parse(path_of(module).read_text())


def path_of(module: str) -> Path:
    """Raises FileNotFoundError."""
    for root in ROOTS:
        place = root.joinpath(*module.split("."))
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if path.exists():
                return path
    raise FileNotFoundError(module)


@cache
def definitions(module: str) -> dict[str, tuple[_Definition, str]]:
    """The top-level definitions of a module, each with its documentation."""
    found: dict[str, tuple[_Definition, str]] = {}
    for name, node, doc in _documented(parse(module).body):
        if not _is_overload(node):
            found[name] = node, doc
    return found


@cache
def imported(module: str) -> dict[str, tuple[str, str]]:
    """Names that a module imports from others, each with its module and name there."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(parse(module))
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    }


def _module(entry: str) -> str:
    return entry.partition(":")[0]


def _documented(body: list[ast.stmt]) -> Iterator[tuple[str, _Definition, str]]:
    for node, after in zip(body, [*body[1:], None], strict=True):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name, node, ast.get_docstring(node) or ""
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name, node, _text(after)


def _text(node: ast.stmt | None) -> str:
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return text
    return ""


def _members(node: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    for name, each, doc in _documented(node.body):
        if (name.startswith("_") and name not in ("__init__", "__call__")) or _is_overload(each):
            continue
        match each:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                text = signature(each)
                if any(ast.unparse(one) in ("property", "cached_property") for one in each.decorator_list):
                    text = f"{name}: {ast.unparse(each.returns) if each.returns else 'object'}"
                yield name, text, doc
            case ast.AnnAssign() | ast.Assign():
                yield name, ast.unparse(each), doc


def _own_and_private_bases(found: Name) -> Iterator[ast.ClassDef]:
    if not isinstance(found.node, ast.ClassDef):
        return
    yield found.node
    for base in found.node.bases:
        name = ast.unparse(base).partition("[")[0]
        try:
            parent = find(found.home, name)
        except (KeyError, FileNotFoundError):
            continue  # of another distribution
        if (parent.home, parent.name) not in _homes():
            yield from _own_and_private_bases(parent)


@cache
def _homes() -> frozenset[tuple[str, str]]:
    """Modules and names at which public names are defined."""
    found = (find(module, name) for modules in listed().values() for module, names in modules.items() for name in names)
    return frozenset((each.home, each.name) for each in found)


def _is_overload(node: ast.stmt) -> bool:
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else []
    return any(ast.unparse(decorator) == "overload" for decorator in decorators)
