"""Takes segments in: what is in another stage's pages is gathered at once into memory of this stage."""

import torch
from torch import Tensor

from omni.device import COMPLETED, Device, Stream
from omni.payload import PageSlice
from omni.stage import Feed
from omni_ar.inputs import Segment
from omni_ar.packing import Uploader
from omni_ar.request import ArRequest, ReadySegment

_RING = 4


class SegmentIntake:
    """Segments that have come but cannot be touched yet, because the work that makes them is unfinished."""

    def __init__(self, device: Device, stream: Stream, max_rows: int) -> None:
        self._device = device
        self._stream = stream
        self._uploader = Uploader(device, stream, max_rows, _RING)
        self._waiting: list[tuple[ArRequest, Segment, Feed]] = []

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def add(self, request: ArRequest, segment: Segment, message: Feed) -> None:
        self._waiting.append((request, segment, message))

    def drop(self, request: ArRequest) -> None:
        """Lets go of a request's segments, gathered or not."""
        for waiting, _, message in self._waiting:
            if waiting is request and message.lease is not None:
                message.lease.release(COMPLETED)
        self._waiting = [item for item in self._waiting if item[0] is not request]

    def tick(self) -> bool:
        """Takes in what has become ready."""
        ready = [item for item in self._waiting if item[2].ready.done() and self._uploader.ready]
        for request, segment, message in ready:
            request.segments[segment.name, segment.index] = self._take(message)
        self._waiting = [item for item in self._waiting if item not in ready]
        return bool(ready)

    def _take(self, message: Feed) -> ReadySegment:
        tensors: dict[str, Tensor] = {}
        gathered = False
        for name, tensor in message.payload.tensors.items():
            if isinstance(tensor, PageSlice):
                tensors[name] = self._gather(tensor)
                gathered = True
            else:
                tensors[name] = tensor
        if not gathered:
            return ReadySegment(tensors, COMPLETED, message.lease)
        if message.lease is not None:
            message.lease.release(self._device.record(self._stream))
        # The gather is on the stream that will read its result, so the prompt need not wait for it.
        return ReadySegment(tensors, COMPLETED, None)

    def _gather(self, source: PageSlice) -> Tensor:
        upload = self._uploader.begin()
        span = upload.add(source.slots)
        out = self._device.empty((len(source.slots), source.pages.shape[-1]), source.pages.dtype, self._stream)
        self._uploader.launch(upload)
        self._device.launch(self._stream, gather_rows, source, self._uploader.view(span), out)
        return out


def gather_rows(source: PageSlice, slots_n: Tensor, out_nD: Tensor) -> None:
    torch.index_select(source.pages.flatten(0, 1), 0, slots_n, out=out_nD)
