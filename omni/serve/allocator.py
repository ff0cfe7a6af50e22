"""The C library's allocator in the server's process: large buffers go back to the system when they are freed."""

import ctypes
import os
import platform

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""The parameters of `mallopt`, by their numbers."""
_LARGE = 2**20
_KEPT = 8 * 2**20
"""Free bytes at the end of the heap that are kept."""


def return_large_buffers() -> bool:
    """Makes glibc map each buffer of at least a mebibyte separately, and so return it to the system when it is freed. By default
    glibc stops this when a larger buffer is freed: from then on, buffers of up to 32 MiB (bodies, base64, pictures as files, rows
    of pixels) come from heaps, whose free parts stay with the process. A new mapping costs its page faults, 0.25 ms for a mebibyte,
    little compared with the work on such a buffer. Returns False, without effect, for other C libraries and if the environment sets
    `MALLOC_MMAP_THRESHOLD_` or `GLIBC_TUNABLES`. It affects the whole process, so only a dedicated server process should call it.
    """
    if platform.libc_ver()[0] != "glibc" or "MALLOC_MMAP_THRESHOLD_" in os.environ or "GLIBC_TUNABLES" in os.environ:
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGE)) and bool(mallopt(_M_TRIM_THRESHOLD, _KEPT))
