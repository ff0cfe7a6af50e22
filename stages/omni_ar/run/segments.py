"""Takes segments in: what lies in pages of another stage, in another dtype or on the host is copied into memory of this one."""

import torch
from torch import Tensor

from omni.device import COMPLETED, Device, Stream, Uploader
from omni.errors import InputError
from omni.payload import PageSlice
from omni.stage import Feed, release
from omni_ar.inputs import Segment
from omni_ar.run.request import ArRequest, ReadySegment

_RING = 4


class SegmentIntake:
    """Segments that have come but cannot be touched yet, because the work that makes them is unfinished."""

    def __init__(self, stage: str, device: Device, stream: Stream, max_rows: int, dtype: torch.dtype) -> None:
        """stage: its name, for errors. max_rows: its `max_model_len`. dtype: of the stage, in which its model finds what is of a
        floating one."""
        self._stage = stage
        self._device = device
        self._stream = stream
        self._max_rows = max_rows
        self._dtype = dtype
        self._uploader = Uploader(device, stream, max_rows, _RING)
        self._waiting: list[tuple[ArRequest, Segment, Feed]] = []

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def add(self, request: ArRequest, segment: Segment, message: Feed) -> None:
        """Keeps a segment and owns its lease from here on. Raises InputError for one that came before or is too long."""
        if message.lease is not None:
            # A prompt waits for all of its segments, and is no longer than the model: they are the stage's own concern.
            message.lease.take()
        self._waiting.append((request, segment, message))
        key, field = (segment.name, segment.index), _called(request, segment)
        if key in request.segments or any(r is request and (s.name, s.index) == key for r, s, _ in self._waiting[:-1]):
            raise InputError(field, "came twice", "feed each segment once")
        slices = [t for t in message.payload.tensors.values() if isinstance(t, PageSlice)]
        rows, most = sum(len(source.slots) for source in slices), self._max_rows
        if rows > most:
            problem = f"has {rows} rows, and {self._stage} takes {most}"
            raise InputError(field, problem, f"shorten the prompt or raise {self._stage}.max_model_len")

    def missing(self, request: ArRequest) -> str | None:
        """A segment that the request's prompt waits for and that has not come."""
        come = {(s.name, s.index) for r, s, _ in self._waiting if r is request} | request.segments.keys()
        slots = request.prompt.segments if request.prompt is not None else ()
        return next((f"{slot.name}[{slot.index}]" for slot in slots if (slot.name, slot.index) not in come), None)

    def drop(self, request: ArRequest) -> None:
        """Lets go of a request's segments, gathered or not."""
        for waiting, _, message in self._waiting:
            if waiting is request:
                release(message, COMPLETED)
        self._waiting = [item for item in self._waiting if item[0] is not request]

    def tick(self) -> tuple[list[ArRequest], list[tuple[ArRequest, Exception]]]:
        """Takes in what has become ready. Returns the requests that got something, and those that failed."""
        taken: list[ArRequest] = []
        failed: list[tuple[ArRequest, Exception]] = []
        waiting = []
        for item in self._waiting:
            request, segment, message = item
            # Asked for each: a gather takes an upload slot, and the next slot may still be in use.
            if not message.arrived or not self._uploader.ready:
                waiting.append(item)
                continue
            try:
                request.segments[segment.name, segment.index] = self._take(message)
                taken.append(request)
            except Exception as error:
                # A gather of one of its tensors may have been launched before another's failed.
                release(message, self._device.record(self._stream))
                failed.append((request, error))
        self._waiting = waiting
        return taken, failed

    def _take(self, message: Feed) -> ReadySegment:
        tensors = {name: t for name, t in message.payload.tensors.items() if not isinstance(t, PageSlice)}
        slices = {name: t for name, t in message.payload.tensors.items() if isinstance(t, PageSlice)}
        fitting = {name: t for name, t in tensors.items() if self._fits(t)}
        if len(fitting) == len(message.payload.tensors):
            return ReadySegment(fitting, COMPLETED, message.lease)
        # The copies are on the stream that will read them, so the prompt need not wait for them.
        copied = self._gather(slices) | self._copy({name: t for name, t in tensors.items() if name not in fitting})
        end = self._device.record(self._stream)
        for source in slices.values():
            source.gathered(end)
        if fitting:  # they are read where they are, later
            return ReadySegment(fitting | copied, end, message.lease)
        release(message, end)
        return ReadySegment(copied, COMPLETED, None)

    def _fits(self, source: Tensor) -> bool:
        here = source.device.type == self._device.torch_device.type
        return here and source.dtype == self._dtype_of(source)

    def _dtype_of(self, source: Tensor) -> torch.dtype:
        """In which the model finds it."""
        return self._dtype if source.is_floating_point() else source.dtype

    def _gather(self, slices: dict[str, PageSlice]) -> dict[str, Tensor]:
        if not slices:
            return {}
        upload = self._uploader.begin()
        spans = {name: upload.add(source.slots) for name, source in slices.items()}
        self._uploader.launch(upload)
        gathered = {}
        for name, source in slices.items():
            size = (len(source.slots), source.pages.shape[-1])
            out = self._device.empty(size, self._dtype_of(source.pages), self._stream)
            self._device.launch(self._stream, gather_segment, source.pages, self._uploader.view(spans[name]), out)
            gathered[name] = out
        return gathered

    def _copy(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        copied = {}
        for name, source in tensors.items():
            out = self._device.empty(tuple(source.shape), self._dtype_of(source), self._stream)
            self._device.launch(self._stream, copy_segment, source, out)
            copied[name] = out
        return copied


def gather_segment(pages: Tensor, slots_n: Tensor, out_nD: Tensor) -> None:
    """Stages may differ in their dtype."""
    if pages.dtype == out_nD.dtype:
        torch.index_select(pages.flatten(0, 1), 0, slots_n, out=out_nD)
    else:
        out_nD.copy_(pages.flatten(0, 1).index_select(0, slots_n))


def copy_segment(source: Tensor, out: Tensor) -> None:
    out.copy_(source, non_blocking=True)


def _called(request: ArRequest, segment: Segment) -> str:
    """For errors: as its slot is, if the prompt is here."""
    slots = request.prompt.segments if request.prompt is not None else ()
    names = (slot.called for slot in slots if (slot.name, slot.index) == (segment.name, segment.index))
    return next(names, f"segment.{segment.name}[{segment.index}]")
