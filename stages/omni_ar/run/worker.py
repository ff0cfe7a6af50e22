"""The stage worker: a non-blocking state machine around scheduler and runner."""

import secrets
from collections import deque
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from omni.chunks import TokenChunk
from omni.device import COMPLETED, Event
from omni.errors import InputError, StageError
from omni.payload import PageSlice, Payload
from omni.sampling_params import SamplingParams
from omni.stage import Feed, MailboxWorker, Open, Produced, StageUsage, release
from omni_ar.inputs import CodeFrame, Prompt, PromptHidden, Segment, StepInputs
from omni_ar.model import ArShape
from omni_ar.options import GREEDY, ArOptions
from omni_ar.run.blocks import BlockPool, RowTable, slots_of
from omni_ar.run.limits import MAX_STOP_IDS, MAX_SUPPRESSED_IDS, Limits
from omni_ar.run.reclaim import Reclaimer
from omni_ar.run.request import ArRequest
from omni_ar.run.runner import Runner
from omni_ar.run.scheduler import Scheduler, StepPlan
from omni_ar.run.segments import SegmentIntake
from omni_ar.run.state import RUNNING, STOPPED
from omni_ar.run.step import PayloadHandoff, SampledStep, Scheduled

_MAX_IN_FLIGHT = 1


@dataclass(slots=True)
class _Flight:
    """A launched step and how far the host has got with it. finished: requests that it ended, with the reason."""

    step: SampledStep
    results: NDArray[np.int64] | None = None
    finished: list[tuple[ArRequest, str]] = field(default_factory=list)


class ArWorker(MailboxWorker[ArRequest]):
    """Runs the requests of one autoregressive stage in continuous batches."""

    def __init__(self, name: str, runner: Runner, shape: ArShape, limits: Limits, options: ArOptions) -> None:
        super().__init__(name)
        self._runner = runner
        self._shape = shape
        self._limits = limits
        self._defaults = options.sampling.over(GREEDY)
        self._rows = RowTable(limits.rows)
        self._blocks = BlockPool(limits.num_blocks)
        self._scheduler = Scheduler(
            self._rows, self._blocks, limits.block_size, options.max_num_batched_tokens, bool(shape.step_columns)
        )
        self._segments = SegmentIntake(runner.device, runner.stream, limits.max_model_len)
        self._reclaimer = Reclaimer(self._rows, self._blocks)
        self._flights: deque[_Flight] = deque()

    def usage(self) -> StageUsage:
        return {
            "requests": len(self.requests),
            "rows": self._rows.used,
            "blocks": self._blocks.used,
            "segments": self._segments.waiting,
            "steps": len(self._flights),
        }

    def close(self) -> None:
        for request_id in list(self.requests):
            self.drop(self.requests.pop(request_id))
        self._flights.clear()
        self._reclaimer.tick()

    def open(self, message: Open) -> ArRequest:
        sampling = self._resolve(message.sampling)
        return ArRequest(message.request_id, sampling, set(message.inputs))

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
                self._scheduler.check(request, self._limits.max_model_len, self.name)
                self._queue(request)
            case StepInputs() as steps:
                steps.check(len(self._shape.step_columns))
                request.add_steps(steps)
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
        elif request.row is None and (missing := self._segments.missing(request)):
            raise StageError(self.name, "taking its input", f"it ended before segment {missing}")

    def drop(self, request: ArRequest) -> None:
        self._scheduler.remove(request)
        self._segments.drop(request)
        last_step = request.last_step or COMPLETED
        self._release_segments(request, last_step)
        if request.row is not None:
            self._reclaimer.add(request.row, request.blocks.tolist(), last_step, request.holds)

    def advance(self) -> bool:
        moved = self._reclaimer.tick()
        taken, failed = self._segments.tick()
        for request, error in failed:
            self._fail_live(request, "gathering a segment", error)
        for request in taken:
            try:
                self._queue(request)
            except InputError as error:
                self._fail_live(request, "taking its input", error)
        moved |= bool(taken or failed) or self._poll()
        unread = sum(flight.results is None for flight in self._flights)
        if unread < _MAX_IN_FLIGHT and self._runner.ready:
            plan = self._scheduler.plan()
            if plan is not None:
                self._launch(plan)
                self._poll()
                moved = True
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
            self._runner.forget_batch()
            # What was launched before the failure still runs, and reads what these requests hold.
            end = self._runner.device.record(self._runner.stream)
            for request in plan.requests:
                request.last_step = end
                self.fail(request.id, "running a step", error)
            return
        for request in plan.requests:
            request.scheduled += 1
            request.last_step = step.end
        for request in plan.prefills:
            self._release_segments(request, step.end)
        self._flights.append(_Flight(step))

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
            request.generated += 1
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
            if payload.hidden is not None and scheduled.index == 0 and request.wants_hidden:
                slots = self._slots(request, _prompt(request).payload_positions)
                tensors = {"hidden": PageSlice(payload.hidden, slots)}
                self._hold(request, Payload(PromptHidden(), tensors), payload.ready)
            if payload.codes is not None and status == RUNNING:
                self._hold(request, self._frame(scheduled, payload.codes), payload.ready)

    def _frame(self, scheduled: Scheduled, pages: Tensor) -> Payload:
        request = scheduled.request
        request.frames += 1
        position = np.array([_prompt(request).length + scheduled.index], np.int64)
        return Payload(CodeFrame(), {"codes": PageSlice(pages, self._slots(request, position))})

    def _slots(self, request: ArRequest, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return slots_of(request.blocks, positions, self._limits.block_size)

    def _hold(self, request: ArRequest, payload: Payload, ready: Event) -> None:
        produced = Produced(request.id, payload, ready)
        request.holds.append(produced.hold)
        self.outbox.append(produced)

    def _release_segments(self, request: ArRequest, after: Event) -> None:
        for segment in request.segments.values():
            if segment.lease is not None:
                segment.lease.release(after)
        request.segments.clear()

    def _resolve(self, asked: SamplingParams) -> SamplingParams:
        own = self._defaults
        sampling = msgspec.structs.replace(
            asked.over(own),
            # A request adds ids to the stage's own: it cannot make a stage run on past its end or say what it has no sound for.
            stop_token_ids=_united(own.stop_token_ids, asked.stop_token_ids),
            suppress_token_ids=_united(own.suppress_token_ids, asked.suppress_token_ids),
        )
        if sampling.seed is None:
            sampling = msgspec.structs.replace(sampling, seed=secrets.randbits(63))
        self._check_ids("stop_token_ids", sampling.stop_token_ids, MAX_STOP_IDS)
        self._check_ids("suppress_token_ids", sampling.suppress_token_ids, MAX_SUPPRESSED_IDS)
        return sampling

    def _check_ids(self, name: str, ids: tuple[int, ...] | None, most: int) -> None:
        field = f"sampling.{self.name}.{name}"
        if ids and len(ids) > most:
            raise InputError(field, f"are {len(ids)} ids, the stage's own included", f"use at most {most} in all")
        if ids and max(ids) >= self._shape.vocab_size:
            raise InputError(field, f"{max(ids)} is not in the vocabulary", f"use ids below {self._shape.vocab_size}")
        if name == "suppress_token_ids" and ids and len(set(ids)) >= self._shape.vocab_size:
            raise InputError(field, "leave nothing to say", "suppress fewer ids")


def _united(own: tuple[int, ...] | None, asked: tuple[int, ...] | None) -> tuple[int, ...]:
    return tuple(dict.fromkeys((*(own or ()), *(asked or ()))))


def _counts(request: ArRequest) -> dict[str, int]:
    counts = {"tokens": request.generated, "prompt_tokens": request.prompt.length if request.prompt else 0}
    return counts | ({"frames": request.frames} if request.frames else {})


def _prompt(request: ArRequest) -> Prompt:
    assert request.prompt is not None
    return request.prompt
