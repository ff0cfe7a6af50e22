"""Frames on their way from the producer's memory into a stage's own.

| buffer | written by | read by | freed by |
|---|---|---|---|
| the producer's pages or tensors | producer, before the payload's event | `gather_frames`, `store_frames` | the lease |
| `ring_RCG` of a row | `gather_frames`, `store_frames` | the stage's phases, same stream | the host's count |

A lease is released with the end of the last copy, and who lent the memory keeps it until then: nothing is kept here. Codes that the
host knows are uploaded along with the places they go to.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.device import Device, PhaseCategory, Stream, Uploader, declare_categories
from omni.payload import PageSlice
from omni_frames.arrival import Arrival
from omni_frames.request import FrameRequest, RequestT

_RING = 4
_KNOWN = 0
"""In place of an object's id."""

declare_categories({"gather_frames": PhaseCategory.PAYLOAD, "store_frames": PhaseCategory.PAYLOAD})


@dataclass(frozen=True, slots=True)
class _Take(Generic[RequestT]):
    """Part of an arrival that has room. places: int64, where its frames go in the flattened ring."""

    request: RequestT
    arrival: Arrival
    first: int
    places: NDArray[np.int64]

    @property
    def count(self) -> int:
        return self.places.size


class FrameStore:
    """A ring of `capacity` frames for each row, and the copies into it."""

    def __init__(self, device: Device, stream: Stream, rows: int, capacity: int, groups: int) -> None:
        self.ring_RCG = device.zeros((rows, capacity, groups), torch.int64)
        self._device = device
        self._stream = stream
        self._capacity = capacity
        self._groups = groups
        self._upload = Uploader(device, stream, (1 + groups) * rows * capacity, _RING)

    def places(self, request: FrameRequest, start: int, count: int) -> NDArray[np.int64]:
        """Where frames `start` to `start + count` of the row, counted from its oldest, are in the flattened ring."""
        assert request.row is not None
        offsets = request.start + np.arange(start, start + count, dtype=np.int64)
        return request.row * self._capacity + offsets % self._capacity

    def take(self, requests: Iterable[RequestT]) -> tuple[bool, dict[RequestT, Exception]]:
        """Enqueues the copy of all frames of `requests` that are ready and have room; releases what is wholly copied.

        Returns whether there were any, and the requests whose copy could not be launched.
        """
        if not self._upload.ready:
            return False, {}
        takes = [take for request in requests for take in self._plan(request)]
        return bool(takes), self._launch(takes) if takes else {}

    def _plan(self, request: RequestT) -> list[_Take[RequestT]]:
        takes: list[_Take[RequestT]] = []
        for arrival in request.arrivals:
            room = self._capacity - request.buffered
            if not room or not arrival.message.arrived:
                break
            count = min(room, arrival.count - arrival.taken)
            takes.append(_Take(request, arrival, arrival.taken, self.places(request, request.buffered, count)))
            request.buffered += count
        return takes

    def _launch(self, takes: list[_Take[RequestT]]) -> dict[RequestT, Exception]:
        groups = _by_source(takes)
        arrays = [
            np.concatenate(parts)
            for group in groups
            for parts in ([_sources(t) for t in group], [t.places for t in group])
        ]
        try:
            views = self._upload.send(arrays)
        except Exception as error:
            return {take.request: error for take in takes}  # nothing was copied
        failed: dict[RequestT, Exception] = {}
        for group, sources_n, places_n in zip(groups, views[::2], views[1::2], strict=True):
            try:
                self._copy(group, sources_n, places_n)
            except Exception as error:
                failed.update((take.request, error) for take in group)
        end = self._device.record(self._stream)
        for take in takes:
            take.arrival.taken += take.count
            take.arrival.after = end
            if isinstance(take.arrival.codes, PageSlice):
                take.arrival.codes.gathered(end)
        self._release(takes)
        return failed

    def _copy(self, group: list[_Take[RequestT]], sources_n: Tensor, places_n: Tensor) -> None:
        codes = group[0].arrival.codes
        if isinstance(codes, PageSlice):
            self._device.launch(self._stream, gather_frames, self.ring_RCG, codes.pages, sources_n, places_n)
        elif isinstance(codes, np.ndarray):
            codes_nG = sources_n.view(-1, self._groups)
            self._device.launch(self._stream, store_frames, self.ring_RCG, codes_nG, places_n)
        else:
            first, count = group[0].first, group[0].count
            self._device.launch(self._stream, store_frames, self.ring_RCG, codes[first : first + count], places_n)

    def _release(self, takes: list[_Take[RequestT]]) -> None:
        for take in takes:
            if take.arrival.taken == take.arrival.count:
                take.request.arrivals.remove(take.arrival)
                take.arrival.let_go()


def _by_source(takes: list[_Take[RequestT]]) -> list[list[_Take[RequestT]]]:
    """Slices of the same pages share a copy, and so does what the host knows; a tensor is copied by itself."""
    groups: dict[int, list[_Take[RequestT]]] = {}
    for take in takes:
        match take.arrival.codes:
            case PageSlice(pages=pages):
                key = id(pages)
            case np.ndarray():
                key = _KNOWN
            case _:
                key = id(take)
        groups.setdefault(key, []).append(take)
    return list(groups.values())


def _sources(take: _Take[RequestT]) -> NDArray[np.int64]:
    """What is uploaded of it besides its places: rows of pages, or codes themselves."""
    codes, part = take.arrival.codes, slice(take.first, take.first + take.count)
    if isinstance(codes, PageSlice):
        return codes.slots[part]
    return codes[part].reshape(-1) if isinstance(codes, np.ndarray) else np.empty(0, np.int64)


def gather_frames(ring_RCG: Tensor, pages: Tensor, sources_n: Tensor, places_n: Tensor) -> None:
    ring_RCG.flatten(0, 1).index_copy_(0, places_n, pages.flatten(0, 1).index_select(0, sources_n))


def store_frames(ring_RCG: Tensor, codes_nG: Tensor, places_n: Tensor) -> None:
    ring_RCG.flatten(0, 1).index_copy_(0, places_n, codes_nG.to(ring_RCG.device, non_blocking=True))
