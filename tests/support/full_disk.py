"""A disk without room, on any machine and for any user."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_file_over(size: int) -> Iterator[None]:
    """No file of this process grows beyond `size` bytes: a write that would is cut there, and the next fails (EFBIG).

    Python ignores SIGXFSZ, which would otherwise end the process.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
