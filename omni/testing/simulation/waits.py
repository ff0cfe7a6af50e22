"""Every place in the code that waits for an event, by name.

A wait is a call `event.done()`, by which the host learns, or `device.wait(stream, event)`, by which a stream does. Its name is
module, qualified name of the function, and the number of the wait in that function, in the order of the source:
`omni_encoder.worker.EncoderWorker.advance#1`. A comprehension or a lambda belongs to the function that it stands in.

An event may be made of others: its `done` asks for theirs. Both places are waits then, that one and the one that asked it.
"""

import ast
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

_Place = tuple[int, int]
"""Line and column where a call ends: the interpreter and the parser agree on it, also for calls over several lines."""

_NAMELESS = {"<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>", "<lambda>"}
"""Frames inside of a function."""


@dataclass(slots=True)
class WaitCount:
    """asked: how often the wait was come to. late: how often what it waits for had not happened."""

    asked: int = 0
    late: int = 0


class WaitLog:
    """Counts the waits of a run by name."""

    def __init__(self) -> None:
        self.counts: dict[str, WaitCount] = {}
        self._names: dict[tuple[CodeType, int], str] = {}

    def names(self, caller: FrameType) -> list[str]:
        """Of the wait at which the frame is, and, where it is an event's `done` that asks, of those outside that wait by it."""
        names = [self.name(caller)]
        while (asker := _asker(caller)) is not None:
            caller = asker
            names.append(self.name(caller))
        return names

    def name(self, caller: FrameType) -> str:
        """Of the wait at which the frame is."""
        key = (caller.f_code, caller.f_lasti)
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = _name(caller)
        return name

    def add(self, name: str, *, late: bool) -> None:
        count = self.counts.get(name)
        if count is None:
            count = self.counts[name] = WaitCount()
        count.asked += 1
        count.late += late


def find_waits(*packages: str) -> set[str]:
    """The waits in the source of importable packages, whole. Tools for tests, such as this one, are left out."""
    return {name for package in packages for name in _in_package(package)}


def _in_package(package: str) -> Iterator[str]:
    spec = importlib.util.find_spec(package)
    assert spec is not None, f"there is no package {package}"
    for folder in spec.submodule_search_locations or ():
        for path in sorted(Path(folder).rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            module = ".".join((package, *(part for part in parts if part != "__init__")))
            if not module.startswith("omni.testing"):
                yield from (f"{module}.{name}" for name in _in_file(str(path)).values())


def _asker(frame: FrameType) -> FrameType | None:
    """Who asked for the event whose `done` this is; None if it is no event's."""
    function: FrameType | None = frame
    while function is not None and function.f_code.co_name in _NAMELESS:
        function = function.f_back
    return function.f_back if function is not None and function.f_code.co_name == "done" else None


def _name(caller: FrameType) -> str:
    code, module = caller.f_code, str(caller.f_globals["__name__"])
    _, end_line, _, end_column = list(code.co_positions())[caller.f_lasti // 2]
    if end_line is not None and end_column is not None:
        name = _in_file(code.co_filename).get((end_line, end_column))
        if name is not None:
            return f"{module}.{name}"
    return f"{module}.{code.co_qualname}@{caller.f_lineno}"


@cache
def _in_file(path: str) -> dict[_Place, str]:
    source = Path(path)
    if not source.is_file():
        return {}
    scan = _Scan()
    scan.visit(ast.parse(source.read_bytes()))
    return scan.found


class _Scan(ast.NodeVisitor):
    def __init__(self) -> None:
        self.found: dict[_Place, str] = {}
        self._outer: list[str] = []
        self._counts: dict[str, int] = {}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._inside(node.name, node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._inside(node.name, node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._inside(node.name, node)

    def visit_Call(self, node: ast.Call) -> None:
        # Parts of a call stand before it ends: `a.wait(s, b.done())` has two waits, b's the first.
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and _waits(node.func.attr, len(node.args) + len(node.keywords)):
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            function = ".".join(self._outer)
            self._counts[function] = number = self._counts.get(function, 0) + 1
            self.found[node.end_lineno, node.end_col_offset] = f"{function}#{number}"

    def _inside(self, name: str, node: ast.AST) -> None:
        self._outer.append(name)
        self.generic_visit(node)
        self._outer.pop()


def _waits(method: str, arguments: int) -> bool:
    """Events of threads are waited for by `wait` too, with one argument at most."""
    return (method, arguments) in {("done", 0), ("wait", 2)}
