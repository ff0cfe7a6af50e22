"""All places where the host may wait for the device, with reasons. `may_sync` accepts no others."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum


class SyncPoint(Enum):
    """Values are the reasons."""

    LOAD = "weights and zeroed buffers are written on streams that no stage's stream waits for; once, at start"
    CAPTURE = "a graph is captured when nothing of its first run is left; only before the engine takes requests"
    MEASURE = "the memory of a step is known after it; only before the engine takes requests"
    FREE_MEMORY = "memory in use by work under way is not free; only before the engine takes requests"
    CLOSE = "unused memory is freed; the engine takes no requests then"
    CLOSE_STAGE = "work of a stage that is closed after a fault may still read payloads; once, at that fault"
    RANKS = "the ranks of a stage are connected once each has a result of the others; once, at start"
    TABLES = "constant tables are made on the host and move at their first use on a device, once in the life of a model"


class _Allowed(threading.local):
    depth = 0


_allowed = _Allowed()


@contextmanager
def may_sync(point: SyncPoint) -> Iterator[None]:
    """While entered, this thread may wait for the device. point: the reason."""
    _allowed.depth += 1
    try:
        yield
    finally:
        _allowed.depth -= 1


def sync_allowed() -> bool:
    return _allowed.depth > 0
