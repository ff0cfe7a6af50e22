"""A file that is written as a whole or not at all: what was there before stays until then."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

PathLike = str | os.PathLike[str]


@contextmanager
def replacing(path: PathLike) -> Iterator[BinaryIO]:
    """A file beside `path` to write to, which takes its place in the end. Raises OSError; then `path` is as it was."""
    part = _part(path)
    try:
        with part.open("xb") as file:
            yield file
        part.replace(real(path))
    finally:
        part.unlink(missing_ok=True)


def why_not(path: PathLike) -> str | None:
    """What is wrong with `path` as a file to write, None if it can be written. Changes nothing."""
    try:
        part = _part(path)
        part.open("xb").close()
        part.unlink()
    except OSError as error:
        return f"{path} cannot be written ({error.strerror})"
    return None


def real(path: PathLike) -> Path:
    """Without links: one that leads to a file goes on leading to it."""
    return Path(os.path.realpath(path))


def _part(path: PathLike) -> Path:
    """A name beside `path` that nobody has. Raises OSError if `path` may not be replaced."""
    target = real(path)
    if target.is_dir():
        raise IsADirectoryError(0, "it is a folder")
    if target.exists():
        if not target.is_file():
            raise OSError(0, "it is no regular file")
        if not os.access(target, os.W_OK):
            raise PermissionError(0, "it is read-only")
    return target.with_name(f".{uuid4().hex}.part")
