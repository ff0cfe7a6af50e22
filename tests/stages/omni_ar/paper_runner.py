"""A runner that computes on paper: instead of keys and values, each slot holds what they would depend on.

Every step is checked: its requests may run, its context is still in their blocks, and it writes no block of another request.
The tokens of a row are known here at once, as on a device, and to the host when its handoff arrives.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.device import Device, Event
from omni_ar.inputs import Prompt
from omni_ar.kernels.step.status import RowStatus
from omni_ar.model import ArShape
from omni_ar.options import ArOptions
from omni_ar.run.limits import MAX_STARTS, Limits
from omni_ar.run.plan import PrefillChunk, StepPlan
from omni_ar.run.request import ArRequest, RequestStatus
from omni_ar.run.scheduler import Scheduler
from omni_ar.run.step import PayloadHandoff, SampledStep, Written, snapshot
from omni_ar.run.worker import ArWorker
from tests.support.ar_driver import ArWorkerDriver

VOCAB = 50
STOP = 7
"""The stop id of every request."""

HOLDS_BLOCKS = (RequestStatus.RUNNING, RequestStatus.ISOLATING, RequestStatus.RUNNING_ALONE)


def paper_shape(talker: bool) -> ArShape:
    return ArShape(
        num_layers=1,
        num_kv_heads=1,
        head_dim=1,
        hidden_width=1,
        vocab_size=VOCAB,
        max_positions=64,
        step_columns=("text",) if talker else (),
        payload_width=0 if talker else 1,
    )


@dataclass(frozen=True, slots=True)
class Tokens:
    results: NDArray[np.int64]
    ready: Event

    def read(self, count: int) -> list[list[int]]:
        assert self.ready.done(), "tokens were read before they had arrived"
        results: list[list[int]] = self.results[:count].tolist()
        return results


@dataclass(frozen=True, slots=True)
class PaperPages:
    hidden: Tensor | None
    codes: Tensor | None


@dataclass(slots=True)
class PaperRow:
    """What the device knows of a row."""

    table: list[int]
    outputs: list[int]
    active: bool = True


@dataclass(frozen=True, slots=True)
class PaperSource:
    lag: int = 1
    gives_logits: bool = False


class PaperRunner:
    """faults: steps that fail from now on, each half-way. violations: rules that a step broke."""

    def __init__(self, device: Device, limits: Limits, blocks: int, talker: bool) -> None:
        self.device = device
        self.stream = device.stream("ar")
        self.copy_stream = device.stream("ar-copy")
        self.faults = 0
        self.violations: list[str] = []
        self.most_context = 0
        self._limits = limits
        self._talker = talker
        shape = (blocks + 1, limits.block_size)
        self.pages = PaperPages(
            None if talker else torch.zeros(*shape, 1, dtype=torch.int64),
            torch.zeros(*shape, 2, dtype=torch.int64) if talker else None,
        )
        self._slots: dict[int, int] = {}
        self._rows: dict[int, PaperRow] = {}
        self.worker: ArWorker | None = None
        """Whose pool says who uses a block."""

    ready = True
    source = PaperSource()
    conditioning = torch.empty(0)
    dtype = torch.float32

    can_score = True

    def forget_batch(self) -> None:
        pass

    def execute_model(self, plan: StepPlan) -> StepPlan:
        """Fills slots; where a fault is due, those of the first half of the requests."""
        fails = self.faults > 0
        if fails:
            self.faults -= 1
        self._check_plan(plan)
        requests = plan.requests[: len(plan.requests) // 2] if fails else plan.requests
        chunks = {chunk.request: chunk for chunk in plan.chunks}
        for request in requests:
            self._place(request, plan, chunks.get(request))
            self._fill(request, chunks.get(request))
        if fails:
            raise ValueError("a fault")
        return plan

    def sample_tokens(self, plan: StepPlan) -> SampledStep:
        rows = tuple(snapshot(request) for request in plan.sampled)
        results = np.array([self._sample(request) for request in plan.sampled], np.int64).reshape(-1, 3)
        self.device.wait(self.copy_stream, self.device.record(self.stream))
        tokens = Tokens(results, self.device.record(self.copy_stream)) if rows else None
        hidden = codes = None
        if self.pages.hidden is not None and any(scheduled.emits_hidden for scheduled in rows):
            hidden = Written(self.pages.hidden, self.device.record(self.stream))
        if self.pages.codes is not None and rows:
            for request, (status, _, token) in zip(plan.sampled, results.tolist(), strict=True):
                if not RowStatus(status).over:
                    self._write_frame(request, token)
            codes = Written(self.pages.codes, self.device.record(self.stream))
        end = self.device.record(self.stream)
        return SampledStep(rows, tokens, PayloadHandoff(hidden, codes), None, end)  # type: ignore[arg-type]

    def _check_plan(self, plan: StepPlan) -> None:
        chunked = sum(chunk.length for chunk in plan.chunks)
        left = self._limits.max_num_batched_tokens - len(plan.decodes)
        self._demand(chunked <= max(1, left), f"{chunked} tokens beside {len(plan.decodes)} of the budget")
        self._demand(len(plan.starts) <= MAX_STARTS, f"{len(plan.starts)} starts")
        self._demand(len(set(plan.requests)) == len(plan.requests), "a request is in the step twice")
        self._demand(len(plan.requests) <= self._limits.rows, "more requests than rows")
        for request in plan.requests:
            self._demand(not request.paused, f"{request.id} runs while it is paused")
            alone = request.status is RequestStatus.RUNNING_ALONE
            self._demand(not alone or len(plan.requests) == 1, f"{request.id} is isolated and not alone")
            ahead = request.num_outputs_in_flight
            self._demand(0 <= ahead < self._limits.max_in_flight, f"{request.id} runs {ahead} tokens ahead")
            self._demand(request.num_scheduled_outputs < request.max_tokens, f"{request.id} runs past its limit")
        for chunk in plan.chunks:
            end = chunk.start + chunk.length
            self._demand(
                chunk.start == chunk.request.num_computed_tokens and chunk.length > 0,
                f"an odd chunk of {chunk.request.id}",
            )
            self._demand(
                end <= chunk.request.prefill_end and chunk.last == (end == chunk.request.prefill_end),
                f"an odd chunk of {chunk.request.id}",
            )
            self._demand(chunk.replay or end <= chunk.request.length, f"a chunk of two kinds of {chunk.request.id}")

    def _place(self, request: ArRequest, plan: StepPlan, chunk: PrefillChunk | None) -> None:
        """What the device knows of a row's blocks."""
        held = request.held_table
        if chunk is not None and chunk.first:
            self._demand(
                not request.num_outputs_in_flight, f"{request.id} starts again while tokens of it are in flight"
            )
            self._rows[request.row_index] = PaperRow(held.blocks.tolist(), list(request.outputs))
        table = self._rows[request.row_index].table
        for new in plan.new_blocks:
            if new.request is request:
                self._demand(len(table) == new.index, f"a gap in the table of {request.id}")
                table.append(int(held.ids[new.index]))
        self._demand(table == held.blocks.tolist(), f"{request.id}: the device's table")

    def _fill(self, request: ArRequest, chunk: PrefillChunk | None) -> None:
        if not self._rows[request.row_index].active:
            return
        size, table = self._limits.block_size, request.held_table
        start = request.num_computed_tokens
        end = start + (chunk.length if chunk else 1)
        ahead = self._talker and (chunk is None or chunk.last)
        self._demand(end + ahead <= table.count * size, f"{request.id}: no block for {end + ahead} tokens")
        marks = list(self._marks(request))
        slots = table.slots(np.arange(end), size).tolist()
        context = [self._slots.get(slot) for slot in slots[:start]]
        self.most_context = max(self.most_context, start)
        self._demand(context == marks[:start], f"{request.id}: its context of {start} tokens is not what it was")
        assert self.worker is not None
        for block in {slot // size for slot in slots[start:]}:
            self._demand(self.worker._pool._users[block] == 1, f"{request.id} writes block {block}, which others use")
        self._slots.update(zip(slots[start:], marks[start:end], strict=True))
        if chunk is not None and chunk.replay and self._talker:
            self._restore(request, slots[start:], start - request.length)
        wanted = [p for p in _prompt(request).payload_positions.tolist() if start <= p < end]
        if self.pages.hidden is not None and request.wants_hidden and wanted:
            self._write(self.pages.hidden, [slots[p] for p in wanted], torch.tensor([[marks[p]] for p in wanted]))

    def _restore(self, request: ArRequest, slots: Sequence[int], first: int) -> None:
        saved, pages = request.saved_codes, self.pages.codes
        if saved is None or pages is None or len(saved) < len(request.outputs):
            self._demand(False, f"{request.id}: frames of {len(request.outputs)} tokens are not there")
            return
        self._write(pages, slots, saved[first : first + len(slots)])

    def _sample(self, request: ArRequest) -> tuple[int, int, int]:
        """Status, how many tokens, the token."""
        row = self._rows[request.row_index]
        if not row.active:
            return RowStatus.RUNNING, 0, 0
        *_, last = self._marks(request)
        token = last % VOCAB
        row.outputs.append(token)
        full = len(row.outputs) >= request.max_tokens
        status = RowStatus.STOPPED if token == STOP else RowStatus.FULL if full else RowStatus.RUNNING
        row.active = not status.over
        return status, 1, token

    def _write_frame(self, request: ArRequest, token: int) -> None:
        assert self.pages.codes is not None
        said = len(self._rows[request.row_index].outputs)
        *_, last = self._marks(request, said - 1)
        position = np.array([request.length + said - 1])
        slots = request.held_table.slots(position, self._limits.block_size).tolist()
        self._write(self.pages.codes, slots, torch.tensor([frame_of(token, last)]))

    def _write(self, pages: Tensor, slots: Sequence[int], values: Tensor) -> None:
        self.device.launch(self.stream, write_rows, pages, torch.tensor(slots), values)

    def _marks(self, request: ArRequest, said: int | None = None) -> Iterator[int]:
        """Of its prompt and what it has said, or the first of that."""
        outputs = self._rows[request.row_index].outputs[:said]
        texts = [int(request.step(index)[0]) for index in range(len(outputs))] if self._talker else []
        return marks(request.cache_salt, _prompt(request).columns[0].tolist(), outputs, texts)

    def _demand(self, holds: bool, what: str) -> None:
        # The worker takes what a step raises for the model's own: a broken rule is written down instead.
        if not holds:
            self.violations.append(what)


def write_rows(pages: Tensor, slots_n: Tensor, values_nD: Tensor) -> None:
    pages.flatten(0, 1).index_copy_(0, slots_n, values_nD)


def _prompt(request: ArRequest) -> Prompt:
    assert request.prompt is not None
    return request.prompt


def marks(salt: str, prompt: Sequence[int], outputs: Sequence[int], texts: Sequence[int]) -> Iterator[int]:
    """texts: conditioning of the steps whose inputs are the outputs; empty for a model without."""
    mark = sum(salt.encode())
    for index, token in enumerate((*prompt, *outputs)):
        text = texts[index - len(prompt)] if texts and index >= len(prompt) else 0
        mark = (mark * 31 + token * 17 + text * 5 + 1) * 2654435761 % (1 << 40) >> 3
        yield mark


def frame_of(token: int, mark: int) -> list[int]:
    """The frame that a token begins. mark: of the token before it."""
    return [token, mark % 97]


def answer(
    salt: str, prompt: Sequence[int], max_tokens: int, text: Sequence[int] = (), pad: int = 0
) -> list[list[int]]:
    """Frames as a request alone in the world gets them; a text model's have their first number alone in its tokens.

    text, pad: conditioning, if there is any.
    """
    frames: list[list[int]] = []
    while len(frames) < max_tokens and (not frames or frames[-1][0] != STOP):
        conditioning = [*text, *[pad] * max_tokens][: len(frames)] if text or pad else []
        *_, last = marks(salt, prompt, [frame[0] for frame in frames], conditioning)
        frames.append(frame_of(last % VOCAB, last))
    return frames


def check_statuses(scheduler: Scheduler, requests: Iterable[ArRequest]) -> None:
    """Each of the stage's requests is in the list of its status and in no other, and holds what the status says."""
    kept = scheduler._requests
    for status, listed in kept.items():
        assert all(request.status is status for request in listed)
        assert [request.rank for request in listed] == sorted(request.rank for request in listed)
    alive = list(requests)
    assert sum(map(len, kept.values())) == sum(request.status in kept for request in alive)
    for request in alive:
        assert request.status not in kept or request in kept[request.status]
        assert request.status is not RequestStatus.FINISHED
        if request.status in HOLDS_BLOCKS:
            assert request.table is not None
        elif request.status is not RequestStatus.WAITING_FOR_LOGPROBS:
            assert request.table is None
        if request.status in (RequestStatus.WAITING_FOR_INPUTS, RequestStatus.WAITING):
            assert request.row is None
        elif request.status is not RequestStatus.BLOCKED:
            assert request.row is not None


class PaperDriver(ArWorkerDriver):
    def __init__(self, device: Device, options: ArOptions, *, talker: bool) -> None:
        shape = paper_shape(talker)
        limits = Limits.of("text", options, shape)
        blocks = options.num_blocks or limits.rows * limits.max_blocks
        self.runner = PaperRunner(device, limits, blocks, talker)
        # What the worker asks of a runner is what this one has.
        worker = ArWorker("text", self.runner, shape, limits, options, blocks)  # type: ignore[arg-type]
        self.runner.worker = worker
        super().__init__(worker, device, self.runner.stream)
