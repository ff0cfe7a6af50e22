"""All places in the code that wait for an event, by name. A wait is a call of `event.done()`, by the host, or of
`device.wait(stream, event)` or `wait_remote`, for a stream. Its name consists of module, qualified name of the function, and the
number of the wait in that function, in source order: `omni_encoder.worker.EncoderWorker.advance#1`. A comprehension or a lambda
belongs to its enclosing function. Where the `done` of a composite event calls its parts', both places are waits."""

import ast
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

_Place = tuple[int, int]
"""Line and column of a call's end: interpreter and parser agree on it, also for calls over several lines."""

_NAMELESS = {"<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>", "<lambda>"}
"""Frames that belong to their enclosing function."""


@dataclass(slots=True)
class WaitCount:
    """Counts of one wait. asked: how often it was executed. late: how often its event was not done then."""

    asked: int = 0
    late: int = 0


class WaitLog:
    """Counts the waits of a run by name."""

    def __init__(self) -> None:
        self.counts: dict[str, WaitCount] = {}
        self._names: dict[tuple[CodeType, int], str] = {}

    def names(self, caller: FrameType) -> list[str]:
        """Names of the wait at the frame and, inside an event's `done`, of the outer waits that called it."""
        names = [self.name(caller)]
        while (asker := _asker(caller)) is not None:
            caller = asker
            names.append(self.name(caller))
        return names

    def name(self, caller: FrameType) -> str:
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
    """All waits in the source of importable packages. Test tools, such as this one, are left out."""
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
    """The caller of the event's `done` at this frame; None if the frame is not an event's `done`."""
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

    def visit_Call(self, node: ast.Call) -> None:
        # Inner calls end first: `a.wait(s, b.done())` has two waits, b's the first.
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and _waits(node.func.attr, len(node.args) + len(node.keywords)):
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            function = ".".join(self._outer)
            self._counts[function] = number = self._counts.get(function, 0) + 1
            self.found[node.end_lineno, node.end_col_offset] = f"{function}#{number}"

    def _inside(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self._outer.append(node.name)
        self.generic_visit(node)
        self._outer.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _inside


def _waits(method: str, arguments: int) -> bool:
    """Excludes waits on threading events, whose `wait` has at most one argument."""
    return (method, arguments) in {("done", 0), ("wait", 2), ("wait_remote", 2)}
