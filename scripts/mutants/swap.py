"""Other code in functions that exist already: a process that has everything imported takes a fault in no time."""

import ast
import gc
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType

# The functions of files, by file, then by name and line.
Functions = dict[str, dict[tuple[str, int], list[FunctionType]]]


def import_all(root: Path, paths: list[str]) -> None:
    """Imports the modules in files that nobody imported yet, below whichever root of `sys.path` they are."""
    known = {
        module.__file__ for module in list(sys.modules.values()) if isinstance(module.__dict__.get("__file__"), str)
    }
    roots = [Path(entry).resolve() for entry in sys.path if entry]
    for path in paths:
        file = (root / path).resolve()
        if str(file) not in known:
            nearest = max((top for top in roots if file.is_relative_to(top)), key=lambda top: len(top.parts))
            name = ".".join(file.relative_to(nearest).with_suffix("").parts)
            importlib.import_module(name.removesuffix(".__init__"))


def find_functions(root: Path, paths: list[str]) -> Functions:
    """Functions at the top of modules and of classes, wherever they are kept."""
    files = {str((root / path).resolve()): path for path in paths}
    found: Functions = {path: {} for path in paths}
    for item in gc.get_objects():
        if type(item) is FunctionType and item.__code__.co_filename in files:
            of_file = found[files[item.__code__.co_filename]]
            of_file.setdefault((item.__code__.co_qualname, item.__code__.co_firstlineno), []).append(item)
    return found


def put(tree: ast.Module, path: str, functions: Functions) -> list[FunctionType]:
    """Gives the functions of `path` the code of `tree` and returns them; modules and classes stay as they were imported."""
    changed = []
    for code in _codes(compile(tree, path, "exec")):
        for function in functions[path].get((code.co_qualname, code.co_firstlineno), []):
            function.__code__ = code
            changed.append(function)
    return changed


def _codes(module: CodeType) -> Iterator[CodeType]:
    """Code of functions, not that of functions in functions: these are made by the code around them."""
    for code in module.co_consts:
        if isinstance(code, CodeType):
            if code.co_flags & 0x2:  # CO_NEWLOCALS: a function; the body of a class has none
                yield code
            else:
                yield from _codes(code)
