"""Stage kind `"hidden_clerk"`: reads hidden states in host memory. It has few desks, and who has one keeps it to the end.

It touches no device: rows are read with numpy, once they have arrived.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
from torch import Tensor

from omni.device import COMPLETED, Device
from omni.payload import Payload
from omni.stage import (
    Feed,
    MailboxWorker,
    Open,
    PlainStage,
    Produced,
    StageContext,
    StageUsage,
    build_model,
)
from support.hidden_reader import in_order
from support.hidden_reading import HiddenRows, Reading, ReadOut


class ClerkOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """max_num_seqs: desks. payloads_per_read: of each request. every: it reads on every n-th tick only."""

    max_num_seqs: int = 4
    payloads_per_read: int = 2
    every: int = 1


@dataclass(slots=True, eq=False)
class Case:
    """A request. desk: whether it has one."""

    id: str
    sources: set[str]
    rank: tuple[int, int]
    inputs: deque[Feed] = field(default_factory=deque)
    desk: bool = False
    read: int = 0
    tokens: int = 0
    paused: bool = False


class ClerkWorker(MailboxWorker[Case]):
    def __init__(self, name: str, device: Device, readout: ReadOut, options: ClerkOptions) -> None:
        super().__init__(name)
        self._readout, self._options = readout, options
        self._observer = device.host_observer
        self._ticks = self._waits = 0

    def usage(self) -> StageUsage:
        cases = list(self.requests.values())
        return {
            "requests": len(cases),
            "desks": sum(case.desk for case in cases),
            "leases": sum(len(case.inputs) for case in cases),
        }

    def counters(self) -> Mapping[str, int]:
        """waits: looks at an input that was there before its copy was over."""
        return {"waits": self._waits}

    def open(self, message: Open) -> Case:
        return Case(message.request_id, set(message.inputs), message.rank)

    def feed(self, request: Case, message: Feed) -> None:
        meta, rows = message.payload.meta, message.payload.tensors["hidden"]
        assert isinstance(meta, HiddenRows)
        assert isinstance(rows, Tensor)
        assert rows.device.type == "cpu"
        request.tokens = in_order(meta, rows.shape[0], request.tokens)
        request.inputs.append(message)

    def end(self, request: Case, source: str) -> None:
        request.sources.discard(source)

    def pause(self, request: Case) -> None:
        request.paused = True

    def resume(self, request: Case) -> None:
        request.paused = False

    def drop(self, request: Case) -> None:
        for message in request.inputs:
            message.release(COMPLETED)
        request.inputs.clear()

    def advance(self) -> bool:
        self._ticks += 1
        moved = self._seat()
        for case in list(self.requests.values()):
            if case.desk and not case.paused and case.inputs:
                # Its ticks count as time, so where it does not read there is something to come.
                moved |= bool(self._ticks % self._options.every) or self._read(case)
            if not case.sources and not case.inputs:
                self.finish(case.id, "stop" if case.read else "empty", {"rows": case.read})
                moved = True
        return moved

    def _seat(self) -> bool:
        free = self._options.max_num_seqs - sum(case.desk for case in self.requests.values())
        waiting = sorted((c for c in self.requests.values() if c.inputs and not c.desk), key=lambda case: case.rank)
        for case in waiting[:free]:
            case.desk = True
        return bool(waiting[:free])

    def _read(self, case: Case) -> bool:
        for count in range(self._options.payloads_per_read):
            if not case.inputs:
                return count > 0
            if not case.inputs[0].arrived:
                self._waits += 1
                return count > 0
            self._give(case, case.inputs.popleft())
        return True

    def _give(self, case: Case, message: Feed) -> None:
        meta, rows = message.payload.meta, message.payload.tensors["hidden"]
        assert isinstance(meta, HiddenRows)
        assert isinstance(rows, Tensor)
        if self._observer is not None:
            self._observer.host_reads(rows)
        for offset, numbers in enumerate(self._readout.read(rows.numpy()).tolist()):
            case.read += 1
            reading = Reading(prompt=meta.prompt, index=meta.index + offset, numbers=tuple(numbers))
            self.outbox.append(Produced(case.id, Payload(reading), COMPLETED))
        message.release(COMPLETED)


class ClerkKind:
    """`Stage.model` names a function `(StageContext) -> ReadOut`."""

    name = "hidden_clerk"
    options = ClerkOptions

    def load(self, context: StageContext) -> PlainStage:
        assert isinstance(context.options, ClerkOptions)
        return PlainStage(
            ClerkWorker(context.stage.name, context.device, build_model(context, ReadOut), context.options)
        )
