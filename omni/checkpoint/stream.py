"""Streams weights from files to their tensors, a window at a time: host memory holds a few windows, never a whole file.

| buffer | written by | read by | freed by |
|---|---|---|---|
| window slot, pinned | one reader, until its future is done | `copy_window`, on the load stream | event after copies |
"""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from omni.checkpoint.shards import WeightSpan
from omni.device import Device, HostRing, HostSlot, Stream, SyncPoint, may_sync
from omni.errors import CheckpointError

WINDOW_BYTES = 16 << 20
# One thread reads more slowly than a device copies. The slots beyond the number of readers are being copied.
_READERS = 4
_SLOTS = 6


@dataclass(frozen=True, slots=True)
class _Read:
    """Elements of a weight: their position in the window, and the flat tensor that receives them."""

    start: int
    stop: int
    dtype: torch.dtype
    target_n: torch.Tensor


@dataclass(slots=True)
class _Window:
    """Bytes `start` to `stop` of a file."""

    path: Path
    start: int
    stop: int
    reads: list[_Read] = field(default_factory=list)


def stream_weights(weights: Iterable[tuple[WeightSpan, torch.Tensor]], device: Device) -> None:
    """Reads each span into its tensor on `device`, of the same shape and any dtype. Fastest in file order. Work enqueued earlier
    for the tensors runs first. All copies are complete on return. Raises CheckpointError for a file that has become shorter."""
    with may_sync(SyncPoint.LOAD):
        device.synchronize()
    # Non-contiguous tensors are filled through a contiguous copy, which is moved at the end.
    scattered: list[tuple[torch.Tensor, torch.Tensor]] = []
    targets: list[tuple[WeightSpan, torch.Tensor]] = []
    for span, target in weights:
        if target.is_contiguous():
            targets.append((span, target.view(-1)))
        else:
            scattered.append((target, torch.empty(target.shape, dtype=target.dtype, device=target.device)))
            targets.append((span, scattered[-1][1].view(-1)))
    stream = device.stream("load")
    _stream_windows(list(_windows(targets)), device, stream)
    for target, filled in scattered:
        device.launch(stream, copy_weight, target, filled)
    with may_sync(SyncPoint.LOAD):
        device.synchronize()


def _stream_windows(windows: list[_Window], device: Device, stream: Stream) -> None:
    largest = max((window.stop - window.start for window in windows), default=0)
    ring = HostRing.allocate(device, (largest,), torch.uint8, min(_SLOTS, len(windows)))
    reading: deque[tuple[_Window, HostSlot, Future[None]]] = deque()
    with ThreadPoolExecutor(_READERS, thread_name_prefix="omni-load") as readers:
        for window in windows:
            if len(reading) == _READERS:
                _launch_copies(device, stream, *reading.popleft())
            if not ring.ready:
                with may_sync(SyncPoint.LOAD):
                    device.synchronize()
            slot = ring.advance()
            reading.append((window, slot, readers.submit(_read, window, slot.take())))
        while reading:
            _launch_copies(device, stream, *reading.popleft())


def _launch_copies(device: Device, stream: Stream, window: _Window, slot: HostSlot, read: Future[None]) -> None:
    read.result()
    try:
        for each in window.reads:
            bytes_n = slot.tensor[each.start : each.stop]
            device.launch(stream, copy_window, each.target_n, bytes_n, each.dtype)
    finally:
        slot.guard(device.record(stream))


def copy_window(target_n: torch.Tensor, bytes_n: torch.Tensor, dtype: torch.dtype) -> None:
    """Copies elements of `dtype`, given as bytes on the host, into `target_n`."""
    if target_n.dtype != dtype:
        # Cast on the device: on the host the result would not be pinned.
        bytes_n = bytes_n.to(target_n.device, non_blocking=True)
    target_n.copy_(bytes_n.view(dtype), non_blocking=True)


def copy_weight(target: torch.Tensor, weight: torch.Tensor) -> None:
    target.copy_(weight)


def _windows(weights: Iterable[tuple[WeightSpan, torch.Tensor]]) -> Iterator[_Window]:
    """Consecutive weights of a file share a window; a weight larger than a window spans several."""
    window: _Window | None = None
    for span, target_n in weights:
        size, at = span.dtype.itemsize, span.start
        while at < span.stop:
            # Whether the element follows the window's bytes, aligned to its size, and has room in it.
            filled = window.stop - window.start if window is not None else 0
            fits = filled % size == 0 and filled + size <= WINDOW_BYTES
            if window is None or window.path != span.path or window.stop != at or not fits:
                if window is not None:
                    yield window
                window = _Window(span.path, at, at)
            start = at - window.start
            count = min(span.stop - at, WINDOW_BYTES - start) // size
            first = (at - span.start) // size
            target = target_n[first : first + count]
            window.reads.append(_Read(start, start + count * size, span.dtype, target))
            at += count * size
            window.stop = at
    if window is not None:
        yield window


def _read(window: _Window, slot: NDArray[np.generic]) -> None:
    room = slot.data[: window.stop - window.start]
    with window.path.open("rb", buffering=0) as file:
        file.seek(window.start)
        while room:
            count = file.readinto(room)
            if not count:
                problem = f"ends {len(room)} bytes before its weights do"
                raise CheckpointError(window.path.name, problem, "download the shard again")
            room = room[count:]
