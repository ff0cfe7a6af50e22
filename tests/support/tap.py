"""A stage kind that hands a vocoder's codec frames to the test, and the pipeline that has such a stage.

A frame leaves the engine only as sound; to compare codes, they are tapped where the vocoder takes them.
"""

from dataclasses import dataclass, field

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.device import COMPLETED, Device, Event
from omni.hookspecs import hookimpl
from omni.payload import PageSlice, Payload
from omni.pipeline import Output, Pipeline, Stage
from omni.plugin.entries import StageKindEntry
from omni.stage import Feed, MailboxWorker, Open, PlainStage, Produced, StageContext, StageUsage
from omni_frames.request import CodeFrames


class CodesChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One codec frame, group 0 first."""

    codes: tuple[int, ...]


class TapOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A tap has no settings."""


@dataclass(slots=True, eq=False)
class _Frame:
    """A frame that has come. host: `[1, G]`, its copy on the host, readable once `copied` is done; none while not launched."""

    message: Feed
    host: list[Tensor | NDArray[np.int64]] = field(default_factory=list)
    copied: Event | None = None


@dataclass(slots=True, eq=False)
class _Tapped:
    frames: list[_Frame] = field(default_factory=list)
    count: int = 0
    ended: bool = False


class TapWorker(MailboxWorker[_Tapped]):
    """Copies frames to the host, in order."""

    def __init__(self, name: str, device: Device) -> None:
        super().__init__(name)
        self._device = device
        self._stream = device.stream("tap")

    def usage(self) -> StageUsage:
        return {"requests": len(self.requests), "frames": sum(len(r.frames) for r in self.requests.values())}

    def counters(self) -> dict[str, int]:
        return {}

    def open(self, message: Open) -> _Tapped:
        return _Tapped()

    def feed(self, request: _Tapped, message: Feed) -> None:
        frame = _Frame(message)
        request.frames.append(frame)
        meta = message.payload.meta
        if isinstance(meta, CodeFrames) and meta.codes is not None:  # the host knows them already
            frame.host.append(meta.codes)
            frame.copied = COMPLETED
            message.release(COMPLETED)

    def end(self, request: _Tapped, source: str) -> None:
        request.ended = True

    def pause(self, request: _Tapped) -> None: ...

    def resume(self, request: _Tapped) -> None: ...

    def drop(self, request: _Tapped) -> None:
        for frame in request.frames:
            if frame.copied is None:
                frame.message.release(COMPLETED)
        request.frames.clear()

    def advance(self) -> bool:
        moved = False
        for request_id, request in list(self.requests.items()):
            for frame in request.frames:
                if frame.copied is None and frame.message.arrived:
                    self._copy(frame)
                    moved = True
            while request.frames and (copied := request.frames[0].copied) is not None and copied.done():
                self._give(request_id, request)
                moved = True
            if request.ended and not request.frames:
                self.finish(request_id, "stop", {"frames": request.count})
                moved = True
        return moved

    def _copy(self, frame: _Frame) -> None:
        source = frame.message.payload.tensors["codes"]
        assert isinstance(source, PageSlice)
        self._device.launch(self._stream, _copy_frame, source.pages, source.slots, frame.host)
        copied = frame.copied = self._device.record(self._stream)
        source.gathered(copied)  # the vocoder may still hold the payload, and its rows may move meanwhile
        frame.message.release(copied)

    def _give(self, request_id: str, request: _Tapped) -> None:
        (codes_1G,) = request.frames.pop(0).host
        request.count += 1
        chunk = CodesChunk(codes=tuple(codes_1G[0].tolist()))
        self.outbox.append(Produced(request_id, Payload(chunk), COMPLETED))


def _copy_frame(pages: Tensor, slots: NDArray[np.int64], host: list[Tensor | NDArray[np.int64]]) -> None:
    (slot,) = slots.tolist()  # a frame is one row, so its number need not go to the device
    codes_1G = pages.flatten(0, 1)[slot : slot + 1]
    pinned_1G = torch.empty(codes_1G.shape, dtype=codes_1G.dtype, pin_memory=codes_1G.is_cuda)
    host.append(pinned_1G.copy_(codes_1G, non_blocking=True))


class TapKind:
    """Stage kind `"tap"`; it has no model."""

    name = "tap"
    options = TapOptions

    def load(self, context: StageContext) -> PlainStage:
        return PlainStage(TapWorker(context.stage.name, context.device))


@hookimpl
def omni_stage_kinds() -> list[StageKindEntry]:
    return [StageKindEntry(name="tap", kind="tests.support.tap:TapKind")]


def with_tap(pipeline: Pipeline) -> Pipeline:
    """The pipeline with a tap beside its vocoder, which gives the output `"codes"`."""
    (vocoder,) = (output.stage for output in pipeline.outputs if output.modality == "audio")
    (edge,) = (edge for edge in pipeline.edges if edge.consumer == vocoder)
    tap = Stage(name="tap", kind="tap", options=TapOptions())
    tapped = msgspec.structs.replace(edge, consumer="tap")
    return pipeline.extended(stages=[tap], edges=[tapped], outputs=[Output(modality="codes", stage="tap")])
