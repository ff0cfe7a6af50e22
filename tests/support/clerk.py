"""A stage that reads rows in host memory. It has few desks, and a request that has one keeps it to its end.

It touches no device: rows are read with numpy, once they have arrived.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from torch import Tensor

from omni.device import COMPLETED, Device
from omni.payload import Payload
from omni.stage import Feed, MailboxWorker, Open, Produced, StageUsage


class ClerkOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """max_num_seqs: desks. payloads_per_read: of each request. every: it reads on every n-th tick only."""

    max_num_seqs: int = 4
    payloads_per_read: int = 2
    every: int = 1


@dataclass(slots=True, eq=False)
class Case:
    """A request. desk: whether it has one. read: rows. tokens: rows of generated tokens."""

    id: str
    sources: set[str]
    rank: tuple[int, int]
    inputs: deque[Feed] = field(default_factory=deque)
    desk: bool = False
    read: int = 0
    tokens: int = 0
    paused: bool = False


Read = Callable[[Case, msgspec.Struct, Tensor | None], Sequence[msgspec.Struct]]
"""What is given out for the rows of a payload, None where it has none."""


class ClerkWorker(MailboxWorker[Case]):
    """tensor: the name of the rows in a payload."""

    def __init__(self, name: str, device: Device, options: ClerkOptions, tensor: str, read: Read) -> None:
        super().__init__(name)
        self._options, self._tensor, self._read_rows = options, tensor, read
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
        moved = self._give_desks()
        for case in list(self.requests.values()):
            if case.desk and not case.paused and case.inputs:
                # Its ticks count as time, so where it does not read there is something to come.
                moved |= bool(self._ticks % self._options.every) or self._read(case)
            if not case.sources and not case.inputs:
                self.finish(case.id, "stop" if case.read else "empty", {"rows": case.read})
                moved = True
        return moved

    def _give_desks(self) -> bool:
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
        rows = message.payload.tensors.get(self._tensor)
        assert isinstance(rows, Tensor | None)
        assert rows is None or rows.device.type == "cpu"
        if self._observer is not None and rows is not None:
            self._observer.host_reads(rows)
        for meta in self._read_rows(case, message.payload.meta, rows):
            case.read += 1
            self.outbox.append(Produced(case.id, Payload(meta), COMPLETED))
        message.release(COMPLETED)
