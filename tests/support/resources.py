"""Resources of a process, to show that it returns to its baseline."""

import gc
import os
import resource
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omni.api.request import Request, RequestHandle
from omni.device.ring import HostSlot
from omni.engine.active import ActiveRequest
from omni.engine.host import HostPending
from omni.engine.route import InRoute, OutRoute
from omni.stage import Lease, Produced
from omni_ar.run.blocks.pool import BlockTable
from omni_ar.run.request import ArRequest
from omni_diffusion.request import DiffusionRequest
from omni_encoder.jobs import EncoderRequest
from omni_local.connector import LocalPending, LocalRef
from omni_vocoder.worker import VocoderRequest

_RECORDS = (
    *(Request, RequestHandle, ActiveRequest, OutRoute, InRoute, Produced, Lease),
    *(HostPending, LocalRef, LocalPending),
    *(ArRequest, BlockTable, DiffusionRequest, EncoderRequest, VocoderRequest),
)


def records() -> Counter[str]:
    """The number of records of requests and their payloads, by type, and of pinned slots that are handed out."""
    gc.collect()
    found = Counter[str]()
    for each in gc.get_objects():
        kind = type(each)  # not isinstance: that imports what lazy modules stand for
        if kind in _RECORDS:
            found[kind.__name__] += 1
        elif kind is HostSlot and not each.free:
            found["pinned slots"] += 1
    return found


def open_files() -> int:
    """Open file descriptors; 0 where the system does not report them."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def resident_bytes() -> int:
    """Memory of the process that is in RAM; 0 where the system does not report it."""
    file = Path("/proc/self/statm")
    return int(file.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if file.exists() else 0


def threads() -> int:
    return threading.active_count()


# A disk without free space, on any machine and for any user.


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
