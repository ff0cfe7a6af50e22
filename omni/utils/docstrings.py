"""Docstrings of transformers."""

from typing import Any


def written_docstring(obj: Any = None, **_: object) -> Any:
    """In place of transformers' decorator `auto_docstring`, with or without arguments: keeps the docstring as it is written."""
    return obj if obj is not None else lambda decorated: decorated
