"""Streams weights from files to their tensors, an extent of a file at a time: host memory holds a few extents, never a whole file.

| buffer | written by | read by | freed by |
|---|---|---|---|
| extent slot, pinned | one reader, until its future is done | `copy_extent`, on the load stream | event after copies |
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
    """Elements of a weight: their position in the extent, and the flat tensor that receives them."""

    start: int
    stop: int
    dtype: torch.dtype
    target_n: torch.Tensor


@dataclass(slots=True)
class _Extent:
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
    _stream_extents(list(_extents(targets)), device, stream)
    for target, filled in scattered:
        device.launch(stream, copy_weight, target, filled)
    with may_sync(SyncPoint.LOAD):
        device.synchronize()


def _stream_extents(extents: list[_Extent], device: Device, stream: Stream) -> None:
    largest = max((extent.stop - extent.start for extent in extents), default=0)
    ring = HostRing.allocate(device, (largest,), torch.uint8, min(_SLOTS, len(extents)))
    reading: deque[tuple[_Extent, HostSlot, Future[None]]] = deque()
    with ThreadPoolExecutor(_READERS, thread_name_prefix="omni-load") as readers:
        for extent in extents:
            if len(reading) == _READERS:
                _launch_copies(device, stream, *reading.popleft())
            if not ring.ready:
                with may_sync(SyncPoint.LOAD):
                    device.synchronize()
            slot = ring.advance()
            reading.append((extent, slot, readers.submit(_read, extent, slot.take())))
        while reading:
            _launch_copies(device, stream, *reading.popleft())


def _launch_copies(device: Device, stream: Stream, extent: _Extent, slot: HostSlot, read: Future[None]) -> None:
    read.result()
    try:
        for each in extent.reads:
            bytes_n = slot.tensor[each.start : each.stop]
            device.launch(stream, copy_extent, each.target_n, bytes_n, each.dtype)
    finally:
        slot.guard(device.record(stream))


def copy_extent(target_n: torch.Tensor, bytes_n: torch.Tensor, dtype: torch.dtype) -> None:
    """Copies elements of `dtype`, given as bytes on the host, into `target_n`."""
    if target_n.dtype != dtype:
        # Cast on the device: on the host the result would not be pinned.
        bytes_n = bytes_n.to(target_n.device, non_blocking=True)
    target_n.copy_(bytes_n.view(dtype), non_blocking=True)


def copy_weight(target: torch.Tensor, weight: torch.Tensor) -> None:
    target.copy_(weight)


def _extents(weights: Iterable[tuple[WeightSpan, torch.Tensor]]) -> Iterator[_Extent]:
    """Consecutive weights of a file share an extent; a weight larger than an extent spans several."""
    extent: _Extent | None = None
    for span, target_n in weights:
        size, at = span.dtype.itemsize, span.start
        while at < span.stop:
            # Whether the element follows the extent's bytes, aligned to its size, and has room in it.
            filled = extent.stop - extent.start if extent is not None else 0
            fits = filled % size == 0 and filled + size <= WINDOW_BYTES
            if extent is None or extent.path != span.path or extent.stop != at or not fits:
                if extent is not None:
                    yield extent
                extent = _Extent(span.path, at, at)
            start = at - extent.start
            count = min(span.stop - at, WINDOW_BYTES - start) // size
            first = (at - span.start) // size
            target = target_n[first : first + count]
            extent.reads.append(_Read(start, start + count * size, span.dtype, target))
            at += count * size
            extent.stop = at
    if extent is not None:
        yield extent


def _read(extent: _Extent, slot: NDArray[np.generic]) -> None:
    room = slot.data[: extent.stop - extent.start]
    with extent.path.open("rb", buffering=0) as file:
        file.seek(extent.start)
        while room:
            count = file.readinto(room)
            if not count:
                problem = f"ends {len(room)} bytes before its weights do"
                raise CheckpointError(extent.path.name, problem, "download the shard again")
            room = room[count:]
