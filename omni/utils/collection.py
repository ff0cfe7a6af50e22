"""Python's garbage collector, kept from running for a while."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.RLock()
_entered = 0
_enabled = False
"""Whether the collector was enabled before the first entry."""


@contextmanager
def no_collection() -> Iterator[None]:
    """Disables garbage collection in the whole process, while entered in any thread."""
    global _entered, _enabled
    with _lock:
        if not _entered:
            _enabled = gc.isenabled()
            gc.disable()
        _entered += 1
    try:
        yield
    finally:
        with _lock:
            _entered -= 1
            if not _entered and _enabled:
                gc.enable()
