"""Local files, within the allowed folder."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

from omni.errors import InputError, quoted
from omni.media.options import MediaOptions

# Does not wait for a FIFO's writer, and is not inherited.
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


def check_path(path: str, field: str, options: MediaOptions) -> None:
    """Raises InputError if the text of the path is forbidden, whether or not the file exists."""
    if not options.allows_local:
        problem, remedy = "is a path, and local files are not opened here", "send the file itself as a data URI"
        raise InputError(field, problem, remedy, "set frontend.media.local")
    if options.local_folder is not None and _below(options.local_folder, path) is None:
        raise _outside(field)


def open_file(path: str, field: str, options: MediaOptions, max_bytes: int) -> BinaryIO:
    """A file of at most `max_bytes` now; it may grow while it is read. Raises InputError for a path that is forbidden, missing or
    not a file."""
    check_path(path, field, options)
    try:
        file = _open(path, field, options)
    except (OSError, ValueError) as error:
        # Base64 text in place of a path fails here too: the name is too long.
        others = ", a URL or a data URI" if options.allows_remote else ", or a data URI"
        remedy = f"give the path of an existing file{others}"
        raise InputError(field, f"there is no file {quoted(path)}", remedy) from error
    if os.fstat(file.fileno()).st_size > max_bytes:
        file.close()
        raise too_large(field, max_bytes)
    return file


def too_large(field: str, max_bytes: int) -> InputError:
    return InputError(field, f"is larger than {max_bytes / 2**20:g} MiB", "give a smaller file")


def _open(path: str, field: str, options: MediaOptions) -> BinaryIO:
    """Raises OSError and ValueError."""
    if options.local_folder is None:
        found = os.path.expanduser(path)
        # Checked first: opening a device may have effects.
        if not stat.S_ISREG(os.stat(found).st_mode):
            raise FileNotFoundError(path)
        descriptor = os.open(found, _FLAGS)
    else:
        descriptor = _open_below(options.local_folder, path, field)
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise FileNotFoundError(path)
    return file


def _open_below(folder: str, path: str, field: str) -> int:
    """Resolves symbolic links once, then opens the result from the folder down without following links, so that a concurrent
    change cannot lead out of the folder."""
    below = _below(folder, path)
    root = os.path.realpath(folder)
    real = os.path.realpath(os.path.join(root, below or "."))
    if below is None or not Path(real).is_relative_to(root):
        raise _outside(field)
    at = os.open(root, _FLAGS | os.O_DIRECTORY)
    try:
        *folders, name = os.path.relpath(real, root).split(os.sep)
        for each in folders:
            inner = os.open(each, _FLAGS | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = inner
        if not stat.S_ISREG(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
            raise FileNotFoundError(path)
        return os.open(name, _FLAGS | os.O_NOFOLLOW, dir_fd=at)
    finally:
        os.close(at)


def _below(folder: str, path: str) -> str | None:
    """The path relative to `folder`; None if it leads out of it. Determined from the texts alone, with `..` resolved lexically, so
    that the result reveals nothing about files elsewhere."""
    given = os.path.abspath(path)
    for root in (os.path.abspath(folder), os.path.realpath(folder)):
        if Path(given).is_relative_to(root):
            return os.path.relpath(given, root)
    return None


def _outside(field: str) -> InputError:
    problem, remedy = "is a path outside of the allowed folder", "send the file itself as a data URI"
    return InputError(field, problem, remedy, "see frontend.media.local_folder")
