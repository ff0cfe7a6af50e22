"""Shared memory without a name: a file descriptor is the only reference, so the kernel frees it with the last process."""

import mmap
import os

import msgspec
import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64
"""Alignment of arrays in shared memory, in bytes."""


def aligned(size: int) -> int:
    """`size` rounded up to `ALIGNMENT`."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def create_memory(size: int, name: str) -> tuple[int, mmap.mmap]:
    """A file descriptor of new shared memory, and its mapping. name: for `/proc`."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, size)
        return descriptor, mmap.mmap(descriptor, size)
    except BaseException:
        os.close(descriptor)
        raise


def map_memory(descriptor: int) -> mmap.mmap:
    """The mapping of a received descriptor, which is closed. Arrays over the mapping keep it alive."""
    try:
        return mmap.mmap(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


class SharedMemoryAddress(msgspec.Struct, frozen=True, array_like=True):
    """Memory of a process, which other processes of the same user can map while that process has it open."""

    pid: int
    descriptor: int
    nbytes: int

    def map(self) -> mmap.mmap:
        """The memory, mapped here too. Raises OSError if its process has ended, or does not let this one reach it."""
        descriptor = os.open(f"/proc/{self.pid}/fd/{self.descriptor}", os.O_RDWR | os.O_CLOEXEC)
        return map_memory(descriptor)


class OutputRing:
    """Shared memory that one process writes in order and another copies from in the same order.

    | bytes of | written by | read by | free again |
    |---|---|---|---|
    | data | the writer, before it sends the message that refers to them | the reader, in `read` | after `read` |
    | the released position | the reader | the writer, in `write` | never |

    Positions count bytes since the start and never wrap; a place is its position modulo the capacity.
    """

    _HEADER = ALIGNMENT

    def __init__(self, mapping: mmap.mmap) -> None:
        self._data = np.frombuffer(mapping, np.uint8, offset=self._HEADER)
        # One aligned 8-byte store or load: no torn values.
        self._released = np.frombuffer(mapping, np.uint64, count=1)
        self._written = 0

    @classmethod
    def create(cls, capacity: int) -> tuple[int, "OutputRing"]:
        """A ring of `capacity` bytes, for the writer, and its descriptor, for the reader."""
        descriptor, mapping = create_memory(cls._HEADER + aligned(capacity), "omni-ring")
        return descriptor, cls(mapping)

    def write(self, data: NDArray[np.uint8]) -> int | None:
        """Copies bytes in. Returns their position; None if they do not fit now."""
        capacity, size = len(self._data), aligned(len(data))
        place = self._written % capacity
        if place + size > capacity:
            skipped = capacity - place  # an array does not wrap
            place = 0
        else:
            skipped = 0
        if self._written + skipped + size - int(self._released[0]) > capacity:
            return None
        position = self._written + skipped
        self._data[place : place + len(data)] = data
        self._written = position + size
        return position

    def read(self, position: int, size: int) -> NDArray[np.uint8]:
        """A copy of the bytes at a position. They count as released at once, with all earlier ones."""
        place = position % len(self._data)
        data = self._data[place : place + size].copy()
        self._released[0] = position + aligned(size)
        return data
