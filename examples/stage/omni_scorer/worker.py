"""The stage worker: takes inputs, scores each on the device, and emits the scores.

| buffer | written by | read by | free when |
|---|---|---|---|
| an input's tensor | its producer | the copy into `rows` | released, and the copy is complete |
| `rows` of an input | the copy | `run_scorer` | stream order: it was allocated on the stream |
| `scores` | `run_scorer` | `download_scorer` | stream order: one stream does it all |
| a host slot | `download_scorer` | `_collect`, after its event | `HostSlot.release` |

Shape legend: n rows of an input, N most of them, W width.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from omni import StageError
from omni.device import COMPLETED, Device, Download, Downloader, PhaseCategory, declare_categories
from omni.payload import Payload
from omni.stage import Feed, MailboxWorker, Open, PayloadCopier, Produced, StageUsage, Transfer
from omni_scorer.model import ScorerModel, Scores
from omni_scorer.options import ScorerOptions

ROWS = "hidden"
"""The tensor of an input `[n, W]`. An adapter on the edge drops payloads without it."""

# Phases are functions; their names, for timelines, are unique among all plugins.
declare_categories({"run_scorer": PhaseCategory.FORWARD, "download_scorer": PhaseCategory.COPIES})


@dataclass(slots=True, eq=False)
class ScorerRequest:
    """sources: edges that may still send inputs. waiting: inputs not launched. in_flight: launched ones. rows: received."""

    id: str
    order: tuple[int, int]
    sources: set[str]
    waiting: deque[Feed] = field(default_factory=deque)
    in_flight: int = 0
    rows: int = 0
    paused: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class RowBatch:
    """An input on the device. first: the number of its first row in the request. rows: their count."""

    request: ScorerRequest
    first: int
    rows: int
    sent: Download


class ScorerWorker(MailboxWorker[ScorerRequest]):
    """Scores inputs in the serving order of their requests. An input's failure fails its request alone."""

    def __init__(self, name: str, device: Device, model: ScorerModel, options: ScorerOptions) -> None:
        super().__init__(name)
        self._device, self._model, self._options = device, model, options
        self._stream = device.stream(name)
        self._scores_N = device.zeros((options.max_rows,), torch.float32)
        self._copier = PayloadCopier(device, self._stream, options.max_rows)
        shape, slots = (options.max_rows,), options.max_in_flight
        self._downloads = Downloader(device, self._stream, self._stream, shape=shape, dtype=torch.float32, slots=slots)
        self._batches: deque[RowBatch] = deque()
        self._scored = 0

    def usage(self) -> StageUsage:
        """Resources in use, all zero when the stage is idle."""
        inputs = sum(len(request.waiting) for request in self.requests.values())
        return {"requests": len(self.requests), "inputs": inputs, "batches": len(self._batches)}

    def counters(self) -> Mapping[str, int]:
        """rows: scored ones."""
        return {"rows": self._scored, "retries": self.retries}

    def close(self) -> None:
        super().close()
        self._batches.clear()

    def open(self, message: Open) -> ScorerRequest:
        return ScorerRequest(message.request_id, message.order, set(message.inputs))

    def feed(self, request: ScorerRequest, message: Feed) -> None:
        try:
            self._check(message.payload)
        except Exception:
            message.release(COMPLETED)  # every input is released once, also one that is refused
            raise
        request.waiting.append(message)

    def end(self, request: ScorerRequest, source: str) -> None:
        request.sources.discard(source)

    def pause(self, request: ScorerRequest) -> None:
        request.paused = True

    def resume(self, request: ScorerRequest) -> None:
        request.paused = False

    def drop(self, request: ScorerRequest) -> None:
        while request.waiting:
            request.waiting.popleft().release(COMPLETED)

    def advance(self) -> bool:
        """Never waits: unfinished work continues in a later tick."""
        moved = self._collect()
        while (request := self._next()) is not None and self._downloads.ready and self._copier.ready:
            self._launch(request, request.waiting.popleft())
            moved = True
        for request in list(self.requests.values()):
            if not (request.sources or request.waiting or request.in_flight):
                self.finish(request.id, "stop", {"rows": request.rows})
                moved = True
        return moved

    def _check(self, payload: Payload) -> None:
        rows = payload.tensors.get(ROWS)
        if rows is None:
            problem = (
                f"a {type(payload.meta).__name__} without tensor {ROWS!r}: have the edge's adapter give or drop it"
            )
            raise StageError(self.name, "taking its input", problem)
        if len(rows.shape) != 2:
            raise StageError(self.name, "taking its input", f"{ROWS!r} is {[*rows.shape]}, not [rows, width]")
        if rows.shape[0] > self._options.max_rows:
            problem = f"{rows.shape[0]} rows are more than {self.name}.max_rows, {self._options.max_rows}"
            raise StageError(self.name, "taking its input", problem)

    def _next(self) -> ScorerRequest | None:
        """The first request with an input that work launched now may read."""
        able = [r for r in self.requests.values() if r.waiting and not r.paused and r.waiting[0].arrived]
        return min(able, key=lambda request: request.order, default=None)

    def _launch(self, request: ScorerRequest, message: Feed) -> None:
        source = message.payload.tensors[ROWS]
        count = source.shape[0]
        scores_n = self._scores_N[:count]
        self._downloads.begin()
        try:
            rows_nW = self._device.empty(source.shape, source.dtype, self._stream)
            self._copier.copy([Transfer(source, rows_nW)]).check()
            self._device.launch(self._stream, run_scorer, self._model, rows_nW, scores_n)
            sent = self._downloads.send(download_scorer, scores_n)
        except Exception as error:
            self._downloads.forget()
            self.fail(request.id, "scoring its rows", error)
            return
        finally:
            message.release(self._device.record(self._stream))
        self._batches.append(RowBatch(request, request.rows, count, sent))
        request.in_flight += 1
        request.rows += count

    def _collect(self) -> bool:
        """Emits the scores that have reached the host, unless their request is over."""
        moved = False
        while self._batches and self._batches[0].sent.ready.done():
            batch = self._batches.popleft()
            slot, request = batch.sent.slot, batch.request
            scores = Scores(first=batch.first, scores=slot.read()[: batch.rows].astype(np.float32))  # a copy
            slot.release()
            self._scored += batch.rows
            if self.requests.get(request.id) is request:
                request.in_flight -= 1
                self.outbox.append(Produced(request.id, Payload(scores), COMPLETED))
            moved = True
        return moved


def run_scorer(model: ScorerModel, rows_nW: Tensor, scores_n: Tensor) -> None:
    """A phase: the work that is launched on the stream."""
    scores_n.copy_(model(rows_nW))


def download_scorer(host_n: Tensor, scores_n: Tensor) -> None:
    host_n.copy_(scores_n, non_blocking=True)
