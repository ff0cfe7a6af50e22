"""Files and folders that are written as a whole or not at all: what was there before stays until then."""

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from omni.errors import shortened

PathLike = str | os.PathLike[str]


@contextmanager
def replacing(path: PathLike) -> Iterator[BinaryIO]:
    """A file beside `path` to write to, which takes its place in the end. Raises OSError; then `path` is as it was."""
    part = _part(path)
    target = real(path)
    try:
        with part.open("xb") as file:
            yield file
        if target.exists():
            part.chmod(stat.S_IMODE(target.stat().st_mode))
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def filling(directory: Path) -> Iterator[Path]:
    """A folder in `directory` to write to, whose files come to be in `directory` itself in the end; all of them or none.

    `directory` is empty, or is made, with the folders above it; of what was made nothing is left after an error. Raises OSError.
    """
    made = _made(directory)
    part = directory / _part_name()
    moved: list[Path] = []
    try:
        part.mkdir()
        yield part
        for file in sorted(part.iterdir()):
            moved.append(directory / file.name)
            file.rename(moved[-1])
        made = []
    except BaseException:
        for path in moved:
            with suppress(FileNotFoundError):
                path.rename(part / path.name)
        raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
        _unmake(made)


def why_not(path: PathLike) -> str | None:
    """What is wrong with `path` as a file to write, None if it can be written. Changes nothing."""
    try:
        part = _part(path)
        part.open("xb").close()
        part.unlink()
    except (OSError, ValueError) as error:
        return f"{shortened(str(path))} cannot be written ({reason(error)})"
    return None


def reason(error: OSError | ValueError) -> str:
    """Why a file cannot be written: its name is not repeated. A ValueError is about a name that no file can have."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def real(path: PathLike) -> Path:
    """Without links: one that leads to a file goes on leading to it."""
    return Path(os.path.realpath(path))


def is_special(path: PathLike) -> bool:
    """Whether `path` is a device, a pipe or a socket: what is written to, and never replaced."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


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
    return target.with_name(_part_name())


def _part_name() -> str:
    return f".{uuid4().hex}.part"


def _made(directory: Path) -> list[Path]:
    """Makes it and what is missing above it. Returns what was made, the innermost first."""
    missing = []
    for folder in (directory, *directory.parents):
        if folder.exists():
            break
        missing.append(folder)
    made: list[Path] = []
    try:
        for folder in reversed(missing):
            folder.mkdir()
            made.insert(0, folder)
    except BaseException:
        _unmake(made)
        raise
    return made


def _unmake(made: list[Path]) -> None:
    for folder in made:
        try:
            folder.rmdir()
        except OSError:  # somebody put something into it meanwhile
            return
