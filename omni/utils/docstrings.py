"""Leaves out the generated parts of transformers' docstrings: for these, transformers 5.17 imports the classes of all its models
and its generation code, which takes seconds of a start.

There are two scopes. An engine's process has no reader of docstrings, so it leaves them out of everything (`skip_docstrings`). A
user's process may have one, so there only the config classes that omni itself imports are without them (`docstrings_skipped`)."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any


def skip_docstrings() -> None:
    """Skips the docstrings of all classes, by an import hook: transformers must not be imported yet, and is not imported here."""
    sys.meta_path.insert(0, _DocstringFinder())


@contextmanager
def docstrings_skipped(transformers: ModuleType) -> Iterator[None]:
    """Skips the docstrings of classes that are first imported inside."""
    utils = vars(transformers.utils)
    generates, utils["auto_docstring"] = utils["auto_docstring"], _written_docstring
    try:
        yield
    finally:
        utils["auto_docstring"] = generates


def _written_docstring(obj: Any = None, **_: object) -> Any:
    """Replaces transformers' decorator `auto_docstring`, with or without arguments: keeps the docstring as it is written."""
    return obj if obj is not None else lambda decorated: decorated


class _DocstringFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "transformers.utils.auto_docstring":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _DocstringLoader(fullname, spec.loader.path)
        return spec


class _DocstringLoader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        vars(module)["auto_docstring"] = _written_docstring
