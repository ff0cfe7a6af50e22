"""Atomic writes of files and folders: existing content stays until the new content is complete."""

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
    """A temporary file beside `path`, which replaces it on success. Raises OSError; then `path` is unchanged."""
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
    """A temporary folder in `directory`, whose files move to `directory` on success, all or none. `directory` is empty, or is
    created with its parents. After an error, everything created is removed. Raises OSError."""
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


def write_problem(path: PathLike) -> str | None:
    """The reason why `path` cannot be written as a file; None if it can. Changes nothing."""
    try:
        part = _part(path)
        part.open("xb").close()
        part.unlink()
    except (OSError, ValueError) as error:
        return f"{shortened(str(path))} cannot be written ({reason(error)})"
    return None


def reason(error: OSError | ValueError) -> str:
    """The reason of an error, without the file's name. A ValueError reports an invalid file name."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def real(path: PathLike) -> Path:
    """Resolves links, so that a link to a file stays a link."""
    return Path(os.path.realpath(path))


def is_special(path: PathLike) -> bool:
    """Whether `path` is a device, a pipe or a socket, which is written to but never replaced."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _part(path: PathLike) -> Path:
    """An unused name beside `path`. Raises OSError if `path` may not be replaced."""
    target = real(path)
    if target.is_dir():
        raise IsADirectoryError(0, "it is a folder")
    if target.exists():
        if not target.is_file():
            raise OSError(0, "it is not a regular file")
        if not os.access(target, os.W_OK):
            raise PermissionError(0, "it is read-only")
    return target.with_name(_part_name())


def _part_name() -> str:
    return f".{uuid4().hex}.part"


def _made(directory: Path) -> list[Path]:
    """Creates a folder and its missing parents. Returns the created folders, the innermost first."""
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
        except OSError:  # another process wrote into it
            return
