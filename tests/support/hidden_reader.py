"""Stage kind `"hidden_reader"`: takes hidden states on the device as a real consumer would.

| buffer | written by | read by | freed by |
|---|---|---|---|
| the producer's pages | the producer, before the payload's event | `gather_rows` | the lease |
| `ring_RCW` of a row | `gather_rows` | `read_rows`, same stream | the host's count |
| `numbers[k]` of a step | `read_rows` | `download`, on the copy stream | the host's reading of the step |

Shape legend: R rows, C capacity, W width, n rows of one copy, N numbers of a reading.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.device import COMPLETED, Device, Event, HostSlot, Uploader
from omni.payload import PageSlice, Payload
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
from tests.support.hidden_model import NUMBERS, HiddenRows, Reading, ReadOut

_MAX_IN_FLIGHT = 2


class ReaderOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """max_num_seqs: requests that are read at once. capacity: rows of a request that wait to be read. rows_per_read: of each
    request. every: it reads on every n-th tick only."""

    max_num_seqs: int = 4
    capacity: int = 8
    rows_per_read: int = 3
    every: int = 1


@dataclass(slots=True, eq=False)
class Arrival:
    """Rows that came and are not all gathered. taken: how many are. after: the last gather of them."""

    message: Feed
    rows: PageSlice
    meta: HiddenRows
    taken: int = 0
    after: Event = COMPLETED


@dataclass(slots=True, eq=False)
class ReadRequest:
    """labels: of the rows in its ring, oldest first. start: where they begin. in_flight: rows of it that are being read."""

    id: str
    sources: set[str]
    rank: tuple[int, int]
    arrivals: deque[Arrival] = field(default_factory=deque)
    row: int | None = None
    start: int = 0
    labels: deque[tuple[bool, int]] = field(default_factory=deque)
    in_flight: int = 0
    read: int = 0
    tokens: int = 0
    live: bool = True
    paused: bool = False


@dataclass(frozen=True, slots=True)
class _Step:
    labels: list[tuple[ReadRequest, bool, int]]
    host: HostSlot
    ready: Event


class ReaderWorker(MailboxWorker[ReadRequest]):
    def __init__(
        self, name: str, device: Device, readout: ReadOut, width: int, dtype: torch.dtype, options: ReaderOptions
    ) -> None:
        super().__init__(name)
        rows, capacity = options.max_num_seqs, options.capacity
        most = rows * options.rows_per_read
        self._device, self._readout, self._options = device, readout, options
        self._stream, self._copy_stream = device.stream(name), device.stream(f"{name}-copy")
        self._ring_RCW = device.zeros((rows, capacity, width), dtype)
        self._upload = Uploader(device, self._stream, 2 * rows * capacity, 4)
        self._numbers = device.zeros((_MAX_IN_FLIGHT, most, NUMBERS), torch.float32)
        self._slots = [
            HostSlot(device, device.host_tensor((most, NUMBERS), torch.float32)) for _ in range(_MAX_IN_FLIGHT)
        ]
        self._free = list(range(rows))
        self._steps: deque[_Step] = deque()
        self._launched = self._ticks = self._gathers = 0

    def usage(self) -> StageUsage:
        return {
            "requests": len(self.requests),
            "rows": self._options.max_num_seqs - len(self._free),
            "leases": sum(len(request.arrivals) for request in self.requests.values()),
            "steps": len(self._steps),
        }

    def counters(self) -> Mapping[str, int]:
        return {"steps": self._launched, "gathers": self._gathers}

    def close(self) -> None:
        super().close()
        self._steps.clear()

    def open(self, message: Open) -> ReadRequest:
        return ReadRequest(message.request_id, set(message.inputs), message.rank)

    def feed(self, request: ReadRequest, message: Feed) -> None:
        meta, rows = message.payload.meta, message.payload.tensors["hidden"]
        assert isinstance(meta, HiddenRows)
        if not isinstance(rows, PageSlice):  # it came through a pool
            rows = PageSlice(rows[None], np.arange(len(rows)))
        request.tokens = in_order(meta, len(rows.slots), request.tokens)
        request.arrivals.append(Arrival(message, rows, meta))

    def end(self, request: ReadRequest, source: str) -> None:
        request.sources.discard(source)

    def pause(self, request: ReadRequest) -> None:
        request.paused = True

    def resume(self, request: ReadRequest) -> None:
        request.paused = False

    def drop(self, request: ReadRequest) -> None:
        request.live = False
        if request.row is not None:
            self._free.append(request.row)  # whoever gets it next writes to it later on the same stream
        while request.arrivals:
            arrival = request.arrivals.popleft()
            arrival.message.release(arrival.after)

    def advance(self) -> bool:
        self._ticks += 1
        moved = self._collect() | self._give_rows() | self._gather()
        if not self._ticks % self._options.every:
            moved |= self._read()
        else:  # its ticks count as time, so there is something to come
            moved |= any(request.labels for request in self.requests.values())
        for request in list(self.requests.values()):
            if not (request.sources or request.arrivals or request.labels or request.in_flight):
                self.finish(request.id, "stop" if request.read else "empty", {"rows": request.read})
                moved = True
        return moved

    def _give_rows(self) -> bool:
        waiting = [r for r in self.requests.values() if r.row is None and r.arrivals]
        chosen = sorted(waiting, key=lambda request: request.rank)[: len(self._free)]
        for request in chosen:
            request.row = self._free.pop()
        return bool(chosen)

    def _places(self, request: ReadRequest, start: int, count: int) -> NDArray[np.int64]:
        """Of rows of the request's ring, counted from the oldest, in the flattened rings."""
        assert request.row is not None
        offsets = request.start + np.arange(start, start + count, dtype=np.int64)
        return request.row * self._options.capacity + offsets % self._options.capacity

    def _gather(self) -> bool:
        """Takes all rows that have arrived and for which there is room."""
        if not self._upload.ready:
            return False
        takes: list[tuple[Arrival, NDArray[np.int64], NDArray[np.int64]]] = []
        for request in self.requests.values():
            takes += self._plan(request) if request.row is not None else []
        if not takes:
            return False
        views = iter(self._upload.send([part for take in takes for part in take[1:]]))
        for arrival, _, _ in takes:
            sources_n, places_n = next(views), next(views)
            self._device.launch(self._stream, gather_rows, self._ring_RCW, arrival.rows.pages, sources_n, places_n)
        self._gathers += len(takes)
        self._let_go([arrival for arrival, _, _ in takes])
        return True

    def _plan(self, request: ReadRequest) -> list[tuple[Arrival, NDArray[np.int64], NDArray[np.int64]]]:
        takes = []
        for arrival in request.arrivals:
            room = self._options.capacity - len(request.labels)
            count = min(room, len(arrival.rows.slots) - arrival.taken)
            if not count or not arrival.message.arrived:
                break
            sources = arrival.rows.slots[arrival.taken : arrival.taken + count]
            takes.append((arrival, sources, self._places(request, len(request.labels), count)))
            first = arrival.meta.index + arrival.taken
            request.labels.extend((arrival.meta.prompt, index) for index in range(first, first + count))
            arrival.taken += count
        return takes

    def _let_go(self, gathered: list[Arrival]) -> None:
        end = self._device.record(self._stream)
        for arrival in gathered:
            arrival.after = end
            arrival.rows.gathered(end)
            if arrival.taken == len(arrival.rows.slots):
                self.requests[arrival.message.request_id].arrivals.remove(arrival)
                arrival.message.release(end)

    def _read(self) -> bool:
        """Reads the oldest rows of every request."""
        slot = self._slots[self._launched % _MAX_IN_FLIGHT]
        busy = [r for r in self.requests.values() if r.labels and not r.paused]
        if not busy or len(self._steps) == _MAX_IN_FLIGHT or not self._upload.ready or not slot.free:
            return False
        places, labels = [], []
        for request in busy:
            count = min(self._options.rows_per_read, len(request.labels))
            places.append(self._places(request, 0, count))
            labels += [(request, *request.labels.popleft()) for _ in range(count)]
            request.start += count
            request.in_flight += count
        (places_n,) = self._upload.send([np.concatenate(places)])
        numbers_nN = self._numbers[self._launched % _MAX_IN_FLIGHT, : len(labels)]
        self._device.launch(self._stream, read_rows, self._readout, self._ring_RCW, places_n, numbers_nN)
        self._device.wait(self._copy_stream, self._device.record(self._stream))
        slot.take()
        self._device.launch(self._copy_stream, download, slot.tensor[: len(labels)], numbers_nN)
        ready = self._device.record(self._copy_stream)
        slot.guard(ready)
        self._steps.append(_Step(labels, slot, ready))
        self._launched += 1
        return True

    def _collect(self) -> bool:
        moved = False
        while self._steps and self._steps[0].ready.done():
            step = self._steps.popleft()
            numbers = step.host.read().tolist()
            for (request, prompt, index), row in zip(step.labels, numbers[: len(step.labels)], strict=True):
                if request.live:
                    request.in_flight -= 1
                    request.read += 1
                    reading = Reading(prompt=prompt, index=index, numbers=tuple(row))
                    self.outbox.append(Produced(request.id, Payload(reading), COMPLETED))
            moved = True
        return moved


def in_order(meta: HiddenRows, rows: int, tokens: int) -> int:
    """How many rows of tokens have come with this payload: one each, in order."""
    if meta.prompt:
        return tokens
    assert (meta.index, rows) == (tokens, 1), f"token {meta.index} came with {rows} rows, {tokens} before it"
    return tokens + 1


def gather_rows(ring_RCW: Tensor, pages: Tensor, sources_n: Tensor, places_n: Tensor) -> None:
    ring_RCW.flatten(0, 1).index_copy_(0, places_n, pages.flatten(0, 1).index_select(0, sources_n))


def read_rows(readout: ReadOut, ring_RCW: Tensor, places_n: Tensor, numbers_nN: Tensor) -> None:
    numbers_nN.copy_(readout(ring_RCW.flatten(0, 1).index_select(0, places_n)))


def download(host: Tensor, numbers_nN: Tensor) -> None:
    host.copy_(numbers_nN, non_blocking=True)


class ReaderKind:
    """`Stage.model` names a function `(StageContext) -> ReadOut`."""

    name = "hidden_reader"
    options = ReaderOptions

    def load(self, context: StageContext) -> PlainStage:
        assert isinstance(context.options, ReaderOptions)
        readout = build_model(context, ReadOut)
        width = int(context.checkpoint.config["width"])
        return PlainStage(
            ReaderWorker(context.stage.name, context.device, readout, width, context.dtype, context.options)
        )


# Stage kind `"hidden_clerk"`: reads hidden states in host memory. It has few desks, and who has one keeps it to the end.
#
# It touches no device: rows are read with numpy, once they have arrived.


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


Read = Callable[[Case, msgspec.Struct, Tensor], Sequence[msgspec.Struct]]
"""What is given out for the rows of a payload."""


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
        rows = message.payload.tensors[self._tensor]
        assert isinstance(rows, Tensor)
        assert rows.device.type == "cpu"
        if self._observer is not None:
            self._observer.host_reads(rows)
        for meta in self._read_rows(case, message.payload.meta, rows):
            case.read += 1
            self.outbox.append(Produced(case.id, Payload(meta), COMPLETED))
        message.release(COMPLETED)


class ClerkKind:
    """`Stage.model` names a function `(StageContext) -> ReadOut`."""

    name = "hidden_clerk"
    options = ClerkOptions

    def load(self, context: StageContext) -> PlainStage:
        assert isinstance(context.options, ClerkOptions)
        readout = build_model(context, ReadOut)

        def read(case: Case, meta: msgspec.Struct, rows: Tensor) -> list[Reading]:
            assert isinstance(meta, HiddenRows)
            case.tokens = in_order(meta, rows.shape[0], case.tokens)
            numbers = enumerate(readout.read(rows.numpy()).tolist(), meta.index)
            return [Reading(prompt=meta.prompt, index=index, numbers=tuple(row)) for index, row in numbers]

        return PlainStage(ClerkWorker(context.stage.name, context.device, context.options, "hidden", read))
