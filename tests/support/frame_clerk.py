"""Stage kind `"frame_clerk"`: reads code frames in host memory, one of each request in a tick. It touches no device."""

from collections import deque
from dataclasses import dataclass, field

import msgspec
from torch import Tensor

from omni.device import COMPLETED, Device
from omni.payload import Payload
from omni.stage import Feed, MailboxWorker, Open, PlainStage, Produced, StageContext, StageUsage
from support.tap import CodesChunk


class FrameClerkOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """every: it reads on every n-th tick only."""

    every: int = 1


@dataclass(slots=True, eq=False)
class _Case:
    id: str
    frames: deque[Feed] = field(default_factory=deque)
    ended: bool = False


class FrameClerk(MailboxWorker[_Case]):
    def __init__(self, name: str, device: Device, options: FrameClerkOptions) -> None:
        super().__init__(name)
        self._observer = device.host_observer
        self._every = options.every
        self._ticks = 0

    def usage(self) -> StageUsage:
        cases = list(self.requests.values())
        return {"requests": len(cases), "frames": sum(len(case.frames) for case in cases)}

    def counters(self) -> dict[str, int]:
        return {}

    def open(self, message: Open) -> _Case:
        return _Case(message.request_id)

    def feed(self, request: _Case, message: Feed) -> None:
        request.frames.append(message)

    def end(self, request: _Case, source: str) -> None:
        request.ended = True

    def pause(self, request: _Case) -> None:
        raise AssertionError("nothing follows it")

    def resume(self, request: _Case) -> None:
        raise AssertionError("nothing follows it")

    def drop(self, request: _Case) -> None:
        for message in request.frames:
            message.release(COMPLETED)
        request.frames.clear()

    def advance(self) -> bool:
        self._ticks += 1
        moved = False
        for case in list(self.requests.values()):
            if case.frames and not self._ticks % self._every and case.frames[0].arrived:
                self._read(case, case.frames.popleft())
                moved = True
            if case.ended and not case.frames:
                self.finish(case.id, "stop", {})
                moved = True
        return moved

    def _read(self, case: _Case, message: Feed) -> None:
        codes = message.payload.tensors["codes"]
        assert isinstance(codes, Tensor)
        if self._observer is not None:
            self._observer.host_reads(codes)
        for frame in codes.numpy().tolist():
            self.outbox.append(Produced(case.id, Payload(CodesChunk(codes=tuple(frame))), COMPLETED))
        message.release(COMPLETED)


class FrameClerkKind:
    """Has no model."""

    name = "frame_clerk"
    options = FrameClerkOptions

    def load(self, context: StageContext) -> PlainStage:
        assert isinstance(context.options, FrameClerkOptions)
        return PlainStage(FrameClerk(context.stage.name, context.device, context.options))
