"""Generates all faults of a file, and samples those of several folders."""

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .operators import replacements

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Text for people: it does not change what a program does.
SPOKEN = ("__repr__", "__str__")
LOGGERS = ("logger", "log", "_log", "warnings")


@dataclass(frozen=True)
class Fault:
    """One fault: `number` is its place among those of its file, `statement` the first line of the statement that it changes."""

    path: str
    function: str
    line: int
    number: int
    before: str
    after: str
    again: int
    statement: str

    @property
    def name(self) -> str:
        """The fault's name; it stays as long as the function's name and the changed text do."""
        again = f" #{self.again + 1}" if self.again else ""
        return f"{self.path} {self.function}: {self.before} -> {self.after}{again}"


@dataclass(frozen=True)
class Site:
    parent: ast.AST
    field: str
    at: int | None
    node: ast.AST
    statement: ast.stmt
    function: str

    @property
    def sets_up(self) -> bool:
        """Whether it is part of what every use of an object needs: without it, nothing at all would run."""
        return self.function.endswith("__init__")

    def put(self, node: ast.AST) -> None:
        if self.at is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.at] = node

    def insert(self, statement: ast.stmt) -> None:
        """Puts `statement` before this one."""
        getattr(self.parent, self.field).insert(self.at, statement)


def faults_of(root: Path, path: str) -> list[Fault]:
    """Every fault that the functions of the file `root / path` could have, in the order of the text."""
    found, seen = [], Counter[tuple[str, str, str]]()
    for number, (site, node) in enumerate(_places(ast.parse((root / path).read_text()))):
        if (site.sets_up and isinstance(site.node, ast.Assign)) or _loses_super(site.node, node):
            continue
        before, after = _cut(_text(site.node), _text(node))
        key = (site.function, before, after)
        line = site.statement.lineno
        found.append(Fault(path, site.function, line, number, before, after, seen[key], header(site.statement)))
        seen[key] += 1
    return found


def mutated(text: str, fault: Fault) -> ast.Module:
    """The module that `text` was, with the fault in it."""
    tree = ast.parse(text)
    for number, (site, node) in enumerate(_places(tree)):
        if number == fault.number:
            ast.copy_location(node, site.node)
            site.put(node)
            return ast.fix_missing_locations(tree)
    raise LookupError(f"{fault.path} has no fault {fault.number}: it changed since faults were drawn")


def files_of(root: Path, folder: str, without: list[str]) -> list[str]:
    paths = sorted(path.relative_to(root).as_posix() for path in (root / folder).rglob("*.py"))
    return [path for path in paths if path not in without]


def sample(by_folder: dict[str, list[Fault]], count: int, seed: int, least: int) -> list[Fault]:
    """About `count` faults, of each folder as many as it has of all, but `least` at the least (or all that it has).

    A fault is drawn for its name alone: code that changes elsewhere hardly changes the sample.
    """
    total = sum(map(len, by_folder.values()))
    drawn = []
    for faults in by_folder.values():
        share = max(least, round(count * len(faults) / max(total, 1)))
        drawn += sorted(faults, key=lambda fault: hashlib.sha256(f"{seed} {fault.name}".encode()).digest())[:share]
    return sorted(drawn, key=lambda fault: (fault.path, fault.number))


def header(statement: ast.stmt) -> str:
    """The first line of a statement, as it would be written out."""
    return ast.unparse(statement).split("\n", 1)[0]


def _text(node: ast.AST) -> str:
    match node:
        case ast.If(ast.Constant(False)):
            return "nothing"
        case ast.stmt():
            return header(node)
    return ast.unparse(node)


def sites(tree: ast.Module) -> list[Site]:
    """The nodes of functions that may be faulty, in the order of the text, a node before what is in it."""
    return list(_sites(tree, "", None))


def _loses_super(before: ast.AST, after: ast.AST) -> bool:
    """Whether a method loses its class as a free variable, so that its code could not replace the original."""
    return "super()" in ast.unparse(before) and "super()" not in ast.unparse(after)


def _cut(before: str, after: str) -> tuple[str, str]:
    """Long texts, less most of what they have in common at the beginning and at the end."""
    if len(before) + len(after) < 200:
        return before, after
    first = _alike(before, after)
    last = _alike(before[first:][::-1], after[first:][::-1])
    begin = max(first - 40, 0)
    parts = [(text[begin : len(text) - max(last - 40, 0)]) for text in (before, after)]
    return ("..." if begin else "") + parts[0], ("..." if begin else "") + parts[1]


def _alike(one: str, other: str) -> int:
    """Length of the common prefix."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _places(tree: ast.Module) -> Iterator[tuple[Site, ast.AST]]:
    for site in sites(tree):
        for node in replacements(site.node):
            yield site, node


def _sites(parent: ast.AST, function: str, statement: ast.stmt | None) -> Iterator[Site]:
    """The nodes below `parent` that may be faulty; `statement` is the innermost around them, None outside of functions."""
    for field, value in ast.iter_fields(parent):
        if field in ("annotation", "returns", "decorator_list", "args") and isinstance(
            parent, (*FUNCTIONS, ast.AnnAssign)
        ):
            continue
        for at, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(node, ast.AST) and not _is_spoken(node):
                yield from _below(parent, field, at, node, function, statement)


def _below(
    parent: ast.AST, field: str, at: int | None, node: ast.AST, function: str, statement: ast.stmt | None
) -> Iterator[Site]:
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        inside = node if isinstance(node, FUNCTIONS) else statement
        yield from _sites(node, f"{function}.{node.name}".lstrip("."), inside)
        return
    if statement is None:
        return
    statement = node if isinstance(node, ast.stmt) else statement
    yield Site(parent, field, at, node, statement, function)
    if not isinstance(node, ast.Raise):
        yield from _sites(node, function, statement)


def _is_spoken(node: ast.AST) -> bool:
    """Whether `node` is text for people, or a check that only a fault elsewhere can fail."""
    match node:
        case ast.JoinedStr() | ast.Assert() | ast.Expr(ast.Constant()):
            return True
        case ast.FunctionDef(name):
            return name in SPOKEN
        case ast.Call(ast.Name(name)):
            return name.endswith("Error") or name == "cast"
        case ast.Call(ast.Attribute(ast.Name(owner), name)):
            return owner in LOGGERS or name.endswith("Error")
        case ast.Expr(value):
            return _is_spoken(value)
    return False
