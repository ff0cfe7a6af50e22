"""Stage kind `"gather"`: a consumer that gathers every row of its producers on the device, and drops it.

| buffer | written by | read by | freed by |
|---|---|---|---|
| the producer's pages | the producer, before the payload's event | `gather_rows` | the lease, after the gather |
| `_out_CW` | `gather_rows` | no reader | it is a ring |

Shape legend: C rows of the ring, W width, n rows of one launch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np
import torch
from torch import Tensor

from omni.device import COMPLETED, Device, PhaseCategory, Uploader, declare_categories
from omni.payload import PageSlice
from omni.stage import Feed, MailboxWorker, Open, PlainStage, StageContext, StageUsage


class GatherOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """width: of the rows. integers: whether they are codes, int64, and not of the stages' dtype. capacity: rows of the ring, and
    the most that one launch takes."""

    width: int
    integers: bool = False
    capacity: int = 4096


@dataclass(slots=True, eq=False)
class Taker:
    """A request. sources: that may still feed it."""

    id: str
    sources: set[str]
    waiting: list[Feed] = field(default_factory=list)
    rows: int = 0


class GatherWorker(MailboxWorker[Taker]):
    """One launch a tick gathers the arrived rows of all requests."""

    def __init__(self, name: str, device: Device, dtype: torch.dtype, options: GatherOptions) -> None:
        super().__init__(name)
        self._device, self._capacity = device, options.capacity
        self._stream = device.stream(name)
        self._upload = Uploader(device, self._stream, 2 * options.capacity, 4)
        self._out_CW = device.zeros((options.capacity, options.width), torch.int64 if options.integers else dtype)
        self.rows = self.launches = 0

    def usage(self) -> StageUsage:
        return {"requests": len(self.requests), "waiting": sum(len(r.waiting) for r in self.requests.values())}

    def counters(self) -> Mapping[str, int]:
        return {"rows": self.rows, "launches": self.launches}

    def open(self, message: Open) -> Taker:
        return Taker(message.request_id, set(message.inputs))

    def feed(self, request: Taker, message: Feed) -> None:
        request.waiting.append(message)

    def end(self, request: Taker, source: str) -> None:
        request.sources.discard(source)

    def pause(self, request: Taker) -> None:
        pass

    def resume(self, request: Taker) -> None:
        pass

    def drop(self, request: Taker) -> None:
        for message in request.waiting:
            message.release(COMPLETED)
        request.waiting.clear()

    def advance(self) -> bool:
        moved = self._gather() if self._upload.ready else False
        for request in list(self.requests.values()):
            if not request.sources and not request.waiting:
                self.finish(request.id, "stop", {"rows": request.rows})
                moved = True
        return moved

    def _gather(self) -> bool:
        taken: list[tuple[Feed, PageSlice]] = []
        free = self._capacity
        for request in self.requests.values():
            while request.waiting and request.waiting[0].arrived:
                (part,) = request.waiting[0].payload.tensors.values()
                assert isinstance(part, PageSlice)
                if len(part.slots) > free:
                    break
                free -= len(part.slots)
                request.rows += len(part.slots)
                taken.append((request.waiting.pop(0), part))
        if not taken:
            return False
        slots = np.concatenate([part.slots for _, part in taken])
        places = (self.rows + np.arange(len(slots), dtype=np.int64)) % self._capacity
        slots_n, places_n = self._upload.send([slots, places])
        # All of them are of one producer's pages.
        self._device.launch(self._stream, gather_rows, taken[0][1].pages, slots_n, places_n, self._out_CW)
        gathered = self._device.record(self._stream)
        for message, part in taken:
            part.gathered(gathered)
            message.release(gathered)
        self.rows += len(slots)
        self.launches += 1
        return True


def gather_rows(pages: Tensor, slots_n: Tensor, places_n: Tensor, out_CW: Tensor) -> None:
    out_CW.index_copy_(0, places_n, pages.flatten(0, 1).index_select(0, slots_n))


declare_categories({"gather_rows": PhaseCategory.PAYLOAD})


class GatherKind:
    """Its model is not used: name any function."""

    name = "gather"
    options = GatherOptions

    def load(self, context: StageContext) -> PlainStage:
        assert isinstance(context.options, GatherOptions)
        return PlainStage(GatherWorker(context.stage.name, context.device, context.dtype, context.options))
