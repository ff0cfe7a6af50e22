"""Streams weights from files to their tensors, an extent of a file at a time: host memory holds a few extents, never a whole file.

| buffer | written by | read by | freed by |
|---|---|---|---|
| extent slot, pinned | one reader, until its future is done | `copy_extent`, on the load stream | event after copies |
"""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from omni.checkpoint.shards import WeightSpan
from omni.device import Device, HostRing, HostSlot, Stream, SyncPoint, may_sync
from omni.errors import CheckpointError

WINDOW_BYTES = 16 << 20
# One thread reads more slowly than a device copies. Slots beyond the number of readers hold extents that are being copied.
_READERS = 4
_SLOTS = 6
# Wanted columns of a row that are read together with the others of the row. Longer ones are read alone.
_SHORT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes `start` to `stop` of a file, and the flat tensor that receives them: of every `unit` bytes, those from `begin` to
    `end`. A unit is an element, or a row of which some columns are wanted."""

    path: Path
    start: int
    stop: int
    dtype: torch.dtype
    unit: int
    begin: int
    end: int
    target_n: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Read:
    """A piece's bytes in an extent, and the part of its tensor that receives them."""

    piece: _Piece
    start: int
    stop: int
    target_n: torch.Tensor

    @property
    def wanted_stop(self) -> int:
        """The end of the wanted bytes, once those between them are left out."""
        return self.start + (self.stop - self.start) // self.piece.unit * (self.piece.end - self.piece.begin)


@dataclass(slots=True)
class _Extent:
    """Bytes `start` to `stop` of a file."""

    path: Path
    start: int
    stop: int
    reads: list[_Read] = field(default_factory=list)


def stream_weights(weights: Iterable[tuple[WeightSpan, torch.Tensor]], device: Device) -> None:
    """Reads each span, or its `cut`, into its tensor on `device`, of the same shape and any dtype. Fastest in file order. Work
    enqueued earlier for the tensors runs first. All copies are complete on return. Raises CheckpointError for a file that has
    become shorter."""
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
    pieces = (piece for span, target_n in targets for piece in _pieces(span, target_n))
    _stream_extents(list(_extents(pieces)), device, stream)
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
            bytes_n = slot.tensor[each.start : each.wanted_stop]
            device.launch(stream, copy_extent, each.target_n, bytes_n, each.piece.dtype)
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


def _pieces(span: WeightSpan, target_n: torch.Tensor) -> Iterator[_Piece]:
    """A weight's wanted bytes: all, consecutive ones of each row, or the whole rows if these are short."""
    size, cut = span.dtype.itemsize, span.cut
    if cut is None:
        yield _Piece(span.path, span.start, span.stop, span.dtype, size, 0, size, target_n)
        return
    if not cut.published:
        return
    inner = size * prod(span.shape[cut.dim + 1 :])
    rows, row, begin = prod(span.shape[: cut.dim]), cut.size * inner, cut.start * inner
    end = begin + cut.published * inner
    if rows > 1 and row <= WINDOW_BYTES and end - begin < _SHORT_BYTES:
        yield _Piece(span.path, span.start, span.stop, span.dtype, row, begin, end, target_n)
        return
    for index, target in enumerate(target_n.view(rows, -1)):
        start = span.start + index * row
        yield _Piece(span.path, start + begin, start + end, span.dtype, size, 0, size, target)


def _extents(pieces: Iterable[_Piece]) -> Iterator[_Extent]:
    """Consecutive pieces of a file share an extent; a piece larger than an extent spans several."""
    extent: _Extent | None = None
    for piece in pieces:
        unit, at = piece.unit, piece.start
        wanted = (piece.end - piece.begin) // piece.dtype.itemsize
        while at < piece.stop:
            # Whether the unit follows the extent's bytes, aligned to its elements, and fits in it.
            filled = extent.stop - extent.start if extent is not None else 0
            fits = filled % piece.dtype.itemsize == 0 and filled + unit <= WINDOW_BYTES
            if extent is None or extent.path != piece.path or extent.stop != at or not fits:
                if extent is not None:
                    yield extent
                extent = _Extent(piece.path, at, at)
            start = at - extent.start
            count = min(piece.stop - at, WINDOW_BYTES - start) // unit
            first = (at - piece.start) // unit
            target = piece.target_n[first * wanted : (first + count) * wanted]
            extent.reads.append(_Read(piece, start, start + count * unit, target))
            at += count * unit
            extent.stop = at
    if extent is not None:
        yield extent


def _read(extent: _Extent, slot: NDArray[np.generic]) -> None:
    unread = slot.data[: extent.stop - extent.start]
    with extent.path.open("rb", buffering=0) as file:
        file.seek(extent.start)
        while unread:
            count = file.readinto(unread)
            if not count:
                problem = f"ends {len(unread)} bytes before its weights do"
                raise CheckpointError(extent.path.name, problem, "download the shard again")
            unread = unread[count:]
    for read in extent.reads:
        piece = read.piece
        if piece.end - piece.begin < piece.unit:
            rows = slot[read.start : read.stop].reshape(-1, piece.unit)
            # The slot keeps the wanted columns alone, one row's after the other's: they move to the device in one copy.
            slot[read.start : read.wanted_stop] = rows[:, piece.begin : piece.end].reshape(-1)
