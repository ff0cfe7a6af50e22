"""A small stage kind that keeps the contract: it adds up a request's inputs. Shape legend: R rows, W numbers."""

from collections import deque
from dataclasses import dataclass, field

import msgspec
import torch
from torch import Tensor

from omni.device import Device
from omni.errors import StageError
from omni.payload import Payload
from omni.stage import Feed, MailboxWorker, Open, PlainStage, Produced, StageContext, StageUsage

WIDTH = 4
MOST = 8
"""Inputs of a request; a further one is refused."""


class Numbers(msgspec.Struct, frozen=True):
    """Input and output. Tensor `numbers`: float32 `[W]`."""

    index: int


class AdderOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_num_seqs: int = 2


@dataclass(slots=True, eq=False)
class AdderRequest:
    """sources: producers that may still send. fresh: its row has no input yet."""

    id: str
    order: tuple[int, int]
    sources: set[str]
    inputs: deque[Feed] = field(default_factory=deque)
    row: int | None = None
    fresh: bool = True
    paused: bool = False
    count: int = 0


class AdderWorker(MailboxWorker[AdderRequest]):
    """Gives the sum so far for each input. sums_RW: a row for each request."""

    def __init__(self, name: str, device: Device, rows: int) -> None:
        super().__init__(name)
        self.device = device
        self.stream = device.stream(name)
        self.sums_RW = torch.zeros(rows, WIDTH)
        self.free = list(range(rows))
        self.lent: list[Produced] = []
        self.added = 0

    def open(self, message: Open) -> AdderRequest:
        return AdderRequest(message.request_id, message.order, set(message.inputs))

    def feed(self, request: AdderRequest, message: Feed) -> None:
        request.inputs.append(message)
        if not isinstance(message.payload.meta, Numbers):
            raise ValueError(f"Numbers are taken, not {message.payload.meta!r}")
        if message.payload.meta.index >= MOST:
            raise StageError(self.name, "taking its input", f"more than {MOST} numbers")

    def end(self, request: AdderRequest, source: str) -> None:
        request.sources.discard(source)

    def pause(self, request: AdderRequest) -> None:
        request.paused = True

    def resume(self, request: AdderRequest) -> None:
        request.paused = False

    def drop(self, request: AdderRequest) -> None:
        for message in request.inputs:
            message.release(self.device.record(self.stream))
        if request.row is not None:
            self.free.append(request.row)

    def advance(self) -> bool:
        before = len(self.lent)
        self.lent = [each for each in self.lent if not each.free]
        moved = len(self.lent) < before
        able = [each for each in self.requests.values() if not each.paused]
        for request in sorted(able, key=lambda each: each.order):
            moved |= self.serve(request)
        return moved

    def close(self) -> None:
        super().close()
        self.lent.clear()

    def serve(self, request: AdderRequest) -> bool:
        if not request.sources and not request.inputs:
            self.finish(request.id, "stop" if request.count else "empty", {"numbers": request.count})
            return True
        if not request.inputs or not self.arrived(request.inputs[0]):
            return False
        if request.row is None:
            if not self.free:
                return False
            request.row = self.free.pop()
        message = request.inputs.popleft()
        try:
            self.add(request, message)
        except Exception as error:
            request.inputs.appendleft(message)
            self.fail(request.id, "adding", error)
        return True

    def arrived(self, message: Feed) -> bool:
        return message.arrived

    def add(self, request: AdderRequest, message: Feed) -> None:
        assert request.row is not None
        assert isinstance(message.payload.meta, Numbers)
        out_W = self.new_output()
        numbers_W = message.payload.tensors["numbers"]
        self.device.launch(self.stream, add_numbers, self.sums_RW, request.row, numbers_W, request.fresh, out_W)
        end = self.device.record(self.stream)
        request.fresh = False
        message.release(end)
        self.give(request, Produced(request.id, Payload(message.payload.meta, {"numbers": out_W}), end))
        request.count += 1
        self.added += 1

    def new_output(self) -> Tensor:
        return self.device.empty((WIDTH,), torch.float32, self.stream)

    def give(self, request: AdderRequest, produced: Produced) -> None:
        self.lent.append(produced)
        self.outbox.append(produced)

    def usage(self) -> StageUsage:
        return {"requests": len(self.requests), "rows": len(self.sums_RW) - len(self.free), "outputs": len(self.lent)}

    def counters(self) -> dict[str, int]:
        return {"numbers": self.added, "retries": self.retries}


def add_numbers(sums_RW: Tensor, row: int, numbers_W: Tensor, fresh: bool, out_W: Tensor) -> None:
    if fresh:
        sums_RW[row].zero_()
    sums_RW[row].add_(numbers_W)
    out_W.copy_(sums_RW[row])


class AdderKind:
    name = "adder"
    options = AdderOptions
    worker: type[AdderWorker] = AdderWorker

    def load(self, context: StageContext) -> PlainStage:
        assert isinstance(context.options, AdderOptions)
        return PlainStage(self.worker(context.stage.name, context.device, context.options.max_num_seqs))


def sample(*firsts: float) -> list[Payload]:
    """The inputs of a request."""
    return [Payload(Numbers(i), {"numbers": torch.arange(WIDTH) + first}) for i, first in enumerate(firsts)]


SAMPLES = [sample(1.0, 2.0, 3.0), sample(5.0), sample(0.5, -7.0, 1.5, 2.5, 9.0)]


REFUSED = [[SAMPLES[1][0], Payload(Numbers(MOST), {"numbers": torch.zeros(WIDTH)})]]


def sums(inputs: list[Payload]) -> list[Payload]:
    """The expected output of a request."""
    total_W, out = torch.zeros(WIDTH), []
    for payload in inputs:
        numbers_W = payload.tensors["numbers"]
        assert isinstance(numbers_W, Tensor)
        total_W = total_W + numbers_W
        out.append(Payload(payload.meta, {"numbers": total_W}))
    return out
