"""The stage worker: a non-blocking state machine around scheduler and runner."""

import itertools
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from omni.chunks import TokenChunk
from omni.device import COMPLETED, Event
from omni.errors import InputError, StageError
from omni.payload import PageSlice, Payload
from omni.stage import Failed, Feed, MailboxWorker, Open, Produced, StageUsage, release
from omni_ar.inputs import CodeFrame, Prompt, PromptHidden, Segment, StepInputs
from omni_ar.model import ArShape
from omni_ar.options import GREEDY, ArOptions
from omni_ar.run.allocator import Allocator
from omni_ar.run.blocks import BlockPool, BlockTable, Lent, Reclaimer, Spiller
from omni_ar.run.limits import Limits
from omni_ar.run.plan import StepPlan
from omni_ar.run.request import ArRequest
from omni_ar.run.resolve import resolve_sampling
from omni_ar.run.rows import RowTable
from omni_ar.run.runner import Runner
from omni_ar.run.scheduler import Scheduler
from omni_ar.run.segments import SegmentIntake
from omni_ar.run.state import RUNNING, STOPPED
from omni_ar.run.step import PayloadHandoff, SampledStep, Scheduled

_MAX_IN_FLIGHT = 1

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Flight:
    """A launched step and how far the host has got with it. tables: what it touches. finished: requests that it ended, and why."""

    step: SampledStep
    tables: tuple[BlockTable, ...]
    results: NDArray[np.int64] | None = None
    finished: list[tuple[ArRequest, str]] = field(default_factory=list)


class ArWorker(MailboxWorker[ArRequest]):
    """Runs the requests of one autoregressive stage in continuous batches."""

    def __init__(
        self, name: str, runner: Runner, shape: ArShape, limits: Limits, options: ArOptions, num_blocks: int
    ) -> None:
        """num_blocks: as many as the runner has allocated, the null block not counted."""
        super().__init__(name)
        self._runner = runner
        self._shape = shape
        self._limits = limits
        self._defaults = options.sampling.over(GREEDY)
        self._opened = itertools.count()
        self._rows = RowTable(limits.rows)
        self._pool = BlockPool(num_blocks)
        self._spiller = Spiller(runner.device, runner.stream, limits.max_model_len)
        self._reclaimer = Reclaimer(self._rows, self._pool, self._spiller)
        conditioned = bool(shape.step_columns)
        self._allocator = Allocator(
            self._rows,
            self._pool,
            self._reclaimer,
            self._spiller,
            block_size=limits.block_size,
            max_blocks=limits.max_blocks,
            code_pages=runner.pages.codes,
            prefix_cache=options.prefix_cache,
            conditioned=conditioned,
        )
        self._scheduler = Scheduler(self._allocator, limits, conditioned)
        self._segments = SegmentIntake(runner.device, runner.stream, limits.max_model_len)
        self._flights: deque[_Flight] = deque()
        self._prefill_tokens = self._decode_tokens = self._steps = self._retries = 0

    def usage(self) -> StageUsage:
        return {
            "requests": len(self.requests),
            "rows": self._rows.used,
            "blocks": self._pool.used,
            "segments": self._segments.waiting,
            "steps": len(self._flights),
            "spilled": self._reclaimer.spilled,
        }

    def counters(self) -> Mapping[str, int]:
        """prompt_tokens: of requests at their first start; cached_tokens of them were in the prefix cache. prefill_tokens: run in
        chunks, again after a preemption included. retries: steps that failed and were run again, request by request."""
        allocated = self._allocator.counters
        return {
            "steps": self._steps,
            "prompt_tokens": allocated.prompt_tokens,
            "cached_tokens": allocated.cached_tokens,
            "prefill_tokens": self._prefill_tokens,
            "decode_tokens": self._decode_tokens,
            "preemptions": allocated.preemptions,
            "spilled_rows": self._spiller.rows,
            "evicted_blocks": self._pool.evictions,
            "cached_blocks": self._pool.cached,
            "retries": self._retries,
        }

    def close(self) -> None:
        for request_id in list(self.requests):
            self.drop(self.requests.pop(request_id))
        self._flights.clear()
        self._reclaimer.clear()

    def open(self, message: Open) -> ArRequest:
        sampling = resolve_sampling(message.sampling, self._defaults, self.name, self._shape.vocab_size)
        rank = (*message.rank, next(self._opened))
        return ArRequest(message.request_id, sampling, set(message.inputs), rank, message.cache_salt)

    def pause(self, request: ArRequest) -> None:
        request.paused = True

    def resume(self, request: ArRequest) -> None:
        request.paused = False
        self._scheduler.wake(request)

    def feed(self, request: ArRequest, message: Feed) -> None:
        meta = message.payload.meta
        if isinstance(meta, Segment):
            self._segments.add(request, meta, message)
            return
        release(message, COMPLETED)  # the other inputs are read from the host alone
        match meta:
            case Prompt() as prompt:
                prompt.check(len(self._shape.prompt_columns), self._shape.position_axes, self._shape.vocab_size)
                if request.prompt is not None:
                    raise InputError("prompt", "came twice", "feed a request one prompt")
                request.prompt = prompt
                self._scheduler.check(request, self.name)
                self._queue(request)
            case StepInputs() as steps:
                steps.check(len(self._shape.step_columns))
                request.add_steps(steps)
                self._scheduler.wake(request)
            case other:
                raise StageError(self.name, "taking its input", f"a stage of kind 'ar' takes no {type(other).__name__}")

    def end(self, request: ArRequest, source: str) -> None:
        request.open_sources.discard(source)
        if request.open_sources:
            return
        if request.prompt is None:
            self.finish(request.id, "empty", _counts(request))
        elif self._shape.step_columns and request.step_pad is None:
            raise StageError(self.name, "taking its input", "it ended before the last step's conditioning")
        elif not request.queued and (missing := self._segments.missing(request)):
            raise StageError(self.name, "taking its input", f"it ended before segment {missing}")

    def drop(self, request: ArRequest) -> None:
        self._scheduler.remove(request)
        self._segments.drop(request)
        for segment in request.segments.values():
            segment.let_go(request.last_step)
        request.segments.clear()
        if request.row is not None:
            self._reclaimer.add_row(request.row, request.last_step)
        if request.table is not None:
            self._reclaimer.add_table(request.table)

    def advance(self) -> bool:
        moved = self._reclaimer.tick()
        taken, failed = self._segments.tick()
        for request, error in failed:
            self._fail_live(request, "gathering a segment", error)
        for request in taken:
            try:
                self._queue(request)
            except Exception as error:
                self._fail_live(request, "taking its input", error)
        moved |= bool(taken or failed)
        moved |= self._poll()
        unread = sum(flight.results is None for flight in self._flights)
        if unread < _MAX_IN_FLIGHT and self._runner.ready:
            plan = self._scheduler.plan()
            if plan is not None:
                self._launch(plan)
                self._poll()
                moved = True
            moved |= self._fail_lost()
        return moved

    def _fail_live(self, request: ArRequest, doing: str, error: Exception) -> None:
        if self.requests.get(request.id) is request:
            self.fail(request.id, doing, error)

    def _queue(self, request: ArRequest) -> None:
        """Hands a request to the scheduler once everything its prompt needs is here."""
        if self.requests.get(request.id) is request and not request.queued and request.prompt_ready:
            request.check_segments()
            request.queued = True
            self._scheduler.add(request)

    def _launch(self, plan: StepPlan) -> None:
        try:
            step = self._runner.sample_tokens(self._runner.execute_model(plan))
        except Exception as error:
            self._isolate(plan, error)
            return
        self._steps += 1
        self._decode_tokens += len(plan.decodes)
        self._prefill_tokens += sum(chunk.length for chunk in plan.chunks)
        self._scheduler.launched(plan)
        tables = tuple(request.held for request in plan.requests)
        for request, table in zip(plan.requests, tables, strict=True):
            request.last_step = table.last_step = step.end
            table.payloads += 1
        for scheduled in step.rows:
            # Now, and not when the payload is taken: the next step may be launched before.
            scheduled.request.hidden_sent |= scheduled.emits_hidden
        self._flights.append(_Flight(step, tables))

    def _isolate(self, plan: StepPlan, error: Exception) -> None:
        """After a step that could not be launched: a request that was alone in it fails, others are run again, one by one."""
        self._runner.forget_batch()
        # What was launched before the failure still runs, and reads what these requests hold.
        end = self._runner.device.record(self._runner.stream)
        for request in plan.requests:
            request.last_step = request.held.last_step = end
        if len(plan.requests) == 1:
            self.fail(plan.requests[0].id, "running a step", error)
            return
        self._retries += 1
        _log.warning(
            "%s: a step of %d requests failed and is run again for each alone",
            self.name,
            len(plan.requests),
            exc_info=error,
        )
        self._scheduler.retry(plan)

    def _fail_lost(self) -> bool:
        """Fails requests that planning could not go on with, or whose payload could not be moved out of blocks that others need."""
        failures, self._allocator.failures = self._allocator.failures, []
        for request_id, doing, error in failures:
            if request_id in self.requests:
                self.fail(request_id, doing, error)
            else:  # done here, but what it made is not: its consumers would wait for ever
                self.outbox.append(Failed(request_id, self._known(doing, error)))
        return bool(failures)

    def _poll(self) -> bool:
        """Takes in finished handoffs, tokens first: a payload that is late holds up nothing but itself."""
        moved = False
        for flight in self._flights:
            if flight.results is None:
                if not flight.step.tokens.ready.done():
                    break
                self._take_tokens(flight)
                moved = True
        while self._flights and self._flights[0].results is not None:
            flight = self._flights[0]
            payload = flight.step.payload
            if payload is not None and not payload.ready.done():
                break
            self._flights.popleft()
            for table in flight.tables:
                table.payloads -= 1
            if payload is not None:
                self._take_payload(flight, payload)
            for request, reason in flight.finished:
                if self.requests.get(request.id) is request:
                    self.finish(request.id, reason, _counts(request))
            moved = True
        return moved

    def _take_tokens(self, flight: _Flight) -> None:
        rows = flight.step.rows
        flight.results = results = flight.step.tokens.read(len(rows)).copy()
        for scheduled, (token, status) in zip(rows, results.tolist(), strict=True):
            request = scheduled.request
            if not self._rows.current(scheduled.row):
                continue  # aborted meanwhile
            request.outputs.append(token)
            self.outbox.append(Produced(request.id, Payload(TokenChunk(ids=(token,))), COMPLETED))
            if status != RUNNING:
                self._scheduler.remove(request)
                flight.finished.append((request, "stop" if status == STOPPED else "length"))

    def _take_payload(self, flight: _Flight, payload: PayloadHandoff) -> None:
        assert flight.results is not None
        for scheduled, status in zip(flight.step.rows, flight.results[:, 1].tolist(), strict=True):
            request = scheduled.request
            if not self._rows.current(scheduled.row):
                continue
            if payload.hidden is not None and scheduled.emits_hidden:
                slots = scheduled.table.slots(_prompt(request).payload_positions, self._limits.block_size)
                self._lend(scheduled, PromptHidden(), "hidden", PageSlice(payload.hidden, slots), payload.ready)
            if payload.codes is not None and status == RUNNING:
                request.frames += 1
                # A frame lies in the slot of the token that begins it.
                position = np.array([request.length + scheduled.index], np.int64)
                slots = scheduled.table.slots(position, self._limits.block_size)
                self._lend(scheduled, CodeFrame(), "codes", PageSlice(payload.codes, slots), payload.ready)

    def _lend(self, scheduled: Scheduled, meta: msgspec.Struct, name: str, part: PageSlice, ready: Event) -> None:
        produced = Produced(scheduled.request.id, Payload(meta, {name: part}), ready)
        scheduled.table.lend(Lent(produced.hold, (part,)))
        self.outbox.append(produced)


def _counts(request: ArRequest) -> dict[str, int]:
    counts = {
        "tokens": len(request.outputs),
        "prompt_tokens": request.length if request.prompt else 0,
        "cached_tokens": request.cached_tokens,
    }
    return counts | ({"frames": request.frames} if request.frames else {})


def _prompt(request: ArRequest) -> Prompt:
    assert request.prompt is not None
    return request.prompt
