"""Opens files of a checkpoint folder, regular files only: reading a pipe or a device could block or never end."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from omni.errors import CheckpointError, shortened


def is_file(path: Path) -> bool:
    """Whether `path` exists and is not a folder. Raises CheckpointError for a pipe, device or socket and an invalid name."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return stat.S_ISREG(mode)
    raise _irregular(path, mode)


def check_folder(folder: Path) -> None:
    """Raises CheckpointError for a pipe, a device or a socket in `folder`, which a library might open by name."""
    if not folder.is_dir():
        return
    try:
        for path in folder.iterdir():
            is_file(path)
    except OSError as error:
        problem = f"{folder} cannot be read ({_reason(error)})"
        raise CheckpointError("model", problem, "give a folder that can be") from error


def open_file(path: Path) -> BinaryIO:
    """Opens the file. Raises CheckpointError if it is missing, unreadable or not a regular file."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise _irregular(path, mode)
    return os.fdopen(descriptor, "rb")


@contextmanager
def reading(path: Path) -> Iterator[BinaryIO]:
    """As `open_file`; errors while reading are CheckpointErrors too."""
    with open_file(path) as file:
        try:
            yield file
        except OSError as error:
            raise _unreadable(path, error) from error


def read_bytes(path: Path, most: int) -> bytes:
    """Returns the file's contents. Raises CheckpointError as `open_file` does, and for more than `most` bytes."""
    with reading(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        problem = f"has {path.stat().st_size:,} bytes, above {most:,}"
        raise CheckpointError(shortened(path.name), problem, "download the file again")
    return content


def read_text(path: Path, most: int) -> str:
    """As `read_bytes`, decoded. Raises CheckpointError for invalid UTF-8 too."""
    try:
        return read_bytes(path, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(
            shortened(path.name), f"is not UTF-8 text ({error})", "download the file again"
        ) from error


def _unreadable(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(shortened(path.name), f"cannot be read ({_reason(error)})", "give a file that can be")


def _reason(error: Exception) -> str:
    # The error's own message repeats the whole path.
    return (error.strerror or type(error).__name__) if isinstance(error, OSError) else shortened(str(error))


def _irregular(path: Path, mode: int) -> CheckpointError:
    kinds = {
        stat.S_IFIFO: "pipe",
        stat.S_IFSOCK: "socket",
        stat.S_IFDIR: "directory",
        stat.S_IFCHR: "device",
        stat.S_IFBLK: "device",
    }
    problem = f"cannot be read (it is a {kinds.get(stat.S_IFMT(mode), 'special file')}, not a file)"
    return CheckpointError(shortened(path.name), problem, "put the file itself there")
