"""Stage kind `"hidden_reader"`: reads hidden states on the device, where they lie.

| buffer | written by | read by | freed by |
|---|---|---|---|
| the producer's pages | the producer, before the payload's event | `read_rows` | the lease |
| `numbers[k]` of a step | `read_rows` | `download`, on the copy stream | the host's reading of the step |

Shape legend: W width, n rows, N numbers of a reading.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import torch
from torch import Tensor

from omni.device import COMPLETED, Device, Event, HostSlot, Uploader
from omni.payload import PageSlice, Payload
from omni.stage import (
    Feed,
    PlainStage,
    Produced,
    StageContext,
    build_model,
)
from tests.support.bounded_worker import BoundedWorker, Case
from tests.support.hidden_model import NUMBERS, HiddenRows, Reading, ReadOut
from tests.support.host_readers import HostReaderOptions, HostReaderWorker

_MAX_IN_FLIGHT = 2


class ReaderOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """max_num_seqs: requests that are read at once. rows_per_read: of each request. every: it reads on every n-th tick only."""

    max_num_seqs: int = 4
    rows_per_read: int = 3
    every: int = 1


@dataclass(slots=True, eq=False)
class Arrival:
    """Arrived rows that are not all read. taken: number of rows read. after: the last read of them."""

    message: Feed
    rows: PageSlice
    meta: HiddenRows
    taken: int = 0
    after: Event = COMPLETED


@dataclass(frozen=True, slots=True)
class _Step:
    labels: list[tuple[Case[Arrival], bool, int]]
    host: HostSlot
    ready: Event


class ReaderWorker(BoundedWorker[Arrival]):
    def __init__(self, name: str, device: Device, readout: ReadOut, options: ReaderOptions) -> None:
        super().__init__(name, options.max_num_seqs)
        most = options.max_num_seqs * options.rows_per_read
        self._device, self._readout, self._options = device, readout, options
        self._stream, self._copy_stream = device.stream(name), device.stream(f"{name}-copy")
        self._upload = Uploader(device, self._stream, most, 4)
        self._numbers = device.zeros((_MAX_IN_FLIGHT, most, NUMBERS), torch.float32)
        self._slots = [
            HostSlot(device, device.host_tensor((most, NUMBERS), torch.float32)) for _ in range(_MAX_IN_FLIGHT)
        ]
        self._steps: deque[_Step] = deque()
        self._launched = self._ticks = 0

    def usage(self) -> Mapping[str, int]:
        return {**super().usage(), "steps": len(self._steps)}

    def counters(self) -> Mapping[str, int]:
        return {"steps": self._launched}

    def close(self) -> None:
        super().close()
        self._steps.clear()

    def feed(self, request: Case[Arrival], message: Feed) -> None:
        meta, rows = message.payload.meta, message.payload.tensors["hidden"]
        assert isinstance(meta, HiddenRows)
        if not isinstance(rows, PageSlice):  # it arrived through a pool
            rows = PageSlice(rows[None], np.arange(len(rows)))
        request.tokens = in_order(meta, len(rows.slots), request.tokens)
        request.inputs.append(Arrival(message, rows, meta))

    def release(self, given: Arrival) -> None:
        given.message.release(given.after)

    def advance(self) -> bool:
        self._ticks += 1
        moved = self._collect() | self.start_requests()
        parts = [(request, *part) for request in self.requests.values() for part in self._parts(request)]
        if parts:  # its ticks count as time, so a tick without a read is still progress
            moved |= bool(self._ticks % self._options.every) or self._read(parts)
        return self.finish_read() or moved

    def _parts(self, request: Case[Arrival]) -> Iterator[tuple[Arrival, int]]:
        """The next rows that can be read, by arrival, and how many of each."""
        left = self._options.rows_per_read if request.running and not request.paused else 0
        for arrival in request.inputs:
            if not left or not arrival.message.arrived:
                return
            count = min(left, len(arrival.rows.slots) - arrival.taken)
            left -= count
            yield arrival, count

    def _read(self, parts: Sequence[tuple[Case[Arrival], Arrival, int]]) -> bool:
        turn = self._launched % _MAX_IN_FLIGHT
        slot, labels = self._slots[turn], list[tuple[Case[Arrival], bool, int]]()
        if len(self._steps) == _MAX_IN_FLIGHT or not self._upload.ready or not slot.free:
            return False
        views = self._upload.send([each.rows.slots[each.taken : each.taken + count] for _, each, count in parts])
        for (request, arrival, count), sources_n in zip(parts, views, strict=True):
            numbers_nN = self._numbers[turn, len(labels) : len(labels) + count]
            self._device.launch(self._stream, read_rows, self._readout, arrival.rows.pages, sources_n, numbers_nN)
            first = arrival.meta.index + arrival.taken
            labels += [(request, arrival.meta.prompt, index) for index in range(first, first + count)]
            request.in_flight += count
            arrival.taken += count
        end = self._device.record(self._stream)
        for request, arrival, _ in parts:
            arrival.after = end
            arrival.rows.gathered(end)
            if arrival.taken == len(arrival.rows.slots):
                request.inputs.remove(arrival)
                arrival.message.release(end)
        self._device.wait(self._copy_stream, end)
        slot.take()
        self._device.launch(self._copy_stream, download, slot.tensor[: len(labels)], self._numbers[turn, : len(labels)])
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
    """How many rows of tokens have arrived with this payload: one each, in order."""
    if meta.prompt:
        return tokens
    assert (meta.index, rows) == (tokens, 1), f"token {meta.index} came with {rows} rows, {tokens} before it"
    return tokens + 1


def read_rows(readout: ReadOut, pages: Tensor, sources_n: Tensor, numbers_nN: Tensor) -> None:
    numbers_nN.copy_(readout(pages.flatten(0, 1).index_select(0, sources_n)))


def download(host: Tensor, numbers_nN: Tensor) -> None:
    host.copy_(numbers_nN, non_blocking=True)


class ReaderKind:
    """`Stage.model` names a function `(StageContext) -> ReadOut`."""

    name = "hidden_reader"
    options = ReaderOptions

    def load(self, context: StageContext) -> PlainStage:
        assert isinstance(context.options, ReaderOptions)
        readout = build_model(context, ReadOut)
        return PlainStage(ReaderWorker(context.stage.name, context.device, readout, context.options))


class HostReaderKind:
    """Stage kind `"hidden_host_reader"`: reads them in host memory. `Stage.model` names a function `(StageContext) -> ReadOut`."""

    name = "hidden_host_reader"
    options = HostReaderOptions

    def load(self, context: StageContext) -> PlainStage:
        assert isinstance(context.options, HostReaderOptions)
        readout = build_model(context, ReadOut)

        def read(case: Case[Feed], meta: msgspec.Struct, rows: Tensor | None) -> list[Reading]:
            assert isinstance(meta, HiddenRows)
            assert rows is not None
            case.tokens = in_order(meta, rows.shape[0], case.tokens)
            numbers = enumerate(readout.read(rows.numpy()).tolist(), meta.index)
            return [Reading(prompt=meta.prompt, index=index, numbers=tuple(row)) for index, row in numbers]

        return PlainStage(HostReaderWorker(context.stage.name, context.device, context.options, "hidden", read))
