"""Turns the handoffs of launched steps into messages: tokens first, log-probabilities later."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from omni.device import COMPLETED
from omni.errors import InputError, ReturnedError
from omni.parallel.watch import StepWatch
from omni.payload import GeneratedTokens, LogprobsChunk, PageSlice, Payload
from omni.sampling import StopVerdict
from omni.stage import Outbound, Produced, method_name
from omni.utils.draft_counts import DraftCounts
from omni_ar.inputs import PromptHidden, TokenCodes, TokenHidden
from omni_ar.kernels.sampling.state import Need
from omni_ar.kernels.step.handoff import IDS, NUM_TOKENS, REPORTED, STATUS, DraftHandoffFields
from omni_ar.kernels.step.status import RowStatus
from omni_ar.run.blocks.pool import BlockTable
from omni_ar.run.buffered_tokens import BufferedTokens
from omni_ar.run.host_processors import HostProcessorExecutor
from omni_ar.run.request import ArRequest, RequestStatus, WithheldToken
from omni_ar.run.scores import read_scores
from omni_ar.run.state import IMPOSSIBLE, NOT_FINITE
from omni_ar.run.step import PayloadHandoff, SampledStep, ScheduledRequest, ScoreHandoff, WrittenPages


class RequestCallbacks(Protocol):
    """Changes to requests that follow from their outputs, implemented by the worker."""

    def finish_request(self, request: ArRequest, reason: str, table: BlockTable | None = None) -> None: ...

    def fail_request(self, request: ArRequest, doing: str, error: Exception) -> None: ...

    def report_drafts(self, step: int, counts: DraftCounts) -> None: ...


@dataclass(frozen=True, slots=True)
class _StepInFlight:
    """A launched step that the host has not read, its requests and their block tables."""

    step: SampledStep
    requests: tuple[ArRequest, ...]
    tables: tuple[BlockTable, ...]


class _Scored(msgspec.Struct, frozen=True):
    """A token with a pending log-probability. row: in the step; with drafts, its position among those of all rows. index: its
    number in the request."""

    request: ArRequest
    row: int
    index: int


class OutputProcessor:
    """Reads the steps' handoffs in order, and emits tokens, payloads and log-probabilities. A token's payload is emitted with the
    token, complete or not: only its consumer polls the event. A request's end waits for its log-probabilities; tokens do not.

    With an interval above 1, several tokens of a request, and their frames, are one payload each: the work of the host, from here
    to the consumer, is per payload. The first tokens are emitted at once, and later ones as soon as their request has no step in
    flight, so that no consumer waits for a token that is not under way."""

    def __init__(
        self,
        host_processors: HostProcessorExecutor,
        outbox: deque[Outbound],
        callbacks: RequestCallbacks,
        *,
        drained: Callable[[ArRequest], None],
        block_size: int,
        emits_tokens: bool,
        logits: object = None,
        drafts: int = 0,
        interval: int = 1,
        watch: StepWatch | None = None,
    ) -> None:
        """interval: `ArOptions.stream_interval`. drafts: maximum number of a row in one step; handoffs report on them. drained:
        called for a preempted request when its last step in flight has been read. logits: the model's method, for errors. watch:
        None if no step waits for other ranks."""
        self.discarded = 0
        """Number of tokens read after the end of their request."""
        self.further_tokens = 0
        """Number of tokens of decode steps besides the first of each row."""
        self.unread_scores = 0
        """Number of launched steps whose log-probabilities are unread."""
        self.drafts = DraftCounts(drafts)
        """Totals of drafts of this stage."""
        self._host_processors = host_processors
        self._outbox = outbox
        self._callbacks = callbacks
        self._drained = drained
        self._size = block_size
        self._emits_tokens = emits_tokens
        self._logits = logits
        self._interval = interval
        self._watch = watch
        self._buffered: dict[ArRequest, BufferedTokens] = {}
        self._in_flight: deque[_StepInFlight] = deque()
        self._pending_scores: deque[tuple[ScoreHandoff, list[_Scored]]] = deque()

    @property
    def steps_in_flight(self) -> int:
        return len(self._in_flight)

    def launched(self, step: SampledStep, requests: Sequence[ArRequest]) -> None:
        tables = tuple([request.held_table for request in requests])
        for request, table in zip(requests, tables, strict=True):
            request.steps_in_flight += 1
            table.unread += 1
            request.last_step_end = step.end
        if step.payload.hidden is not None:
            for scheduled in step.requests.rows:
                # Now, not when the token is read: the next step may be launched earlier.
                scheduled.request.prompt_hidden_sent |= scheduled.emits_hidden
        if step.scores is not None:
            self.unread_scores += 1
            for request in step.scores.requests:
                request.unread_scores += 1
        self._in_flight.append(_StepInFlight(step, tuple(requests), tables))

    def poll(self) -> bool:
        """Reads the completed steps. Returns whether there were any. Raises LostRankError for a step that hangs."""
        moved = False
        while self._in_flight and self._in_flight[0].step.sampled.done():
            self._read(self._in_flight.popleft())
            moved = True
        if self._watch is not None:
            self._watch.look(self._in_flight[0] if self._in_flight else None)
        while self._pending_scores and self._pending_scores[0][0].ready.done():
            self._read_scores(*self._pending_scores.popleft())
            moved = True
        return moved

    def emit_withheld(self, request: ArRequest, keep: int = 0) -> None:
        """Emits the withheld tokens, except the newest `keep`."""
        while len(request.withheld) > keep:
            self._outbox.extend(request.withheld.popleft().messages)

    def emit_buffered(self, request: ArRequest) -> None:
        """Emits the tokens of the request that are buffered, and their frames."""
        buffered = self._buffered.pop(request, None)
        if buffered is None:
            return
        buffered.forget()
        tokens = GeneratedTokens(ids=tuple(buffered.ids), ends=buffered.ends)
        self._outbox.append(Produced(request.id, Payload(tokens), COMPLETED))
        if buffered.frames is not None and buffered.positions:
            positions_n = np.array(buffered.positions, np.int64)
            self._outbox.append(self._page_slice(buffered.table, TokenCodes(), "codes", positions_n, buffered.frames))

    def emit_idle(self) -> bool:
        """As `emit_buffered`, of all requests without a step in flight. Returns whether there were any."""
        idle = [request for request in self._buffered if not request.steps_in_flight]
        for request in idle:
            self.emit_buffered(request)
        return bool(idle)

    def drop(self, request: ArRequest) -> None:
        """Forgets the tokens of the request that are not emitted: it has no consumer."""
        buffered = self._buffered.pop(request, None)
        if buffered is not None:
            buffered.forget()
        for withheld in request.withheld:
            for message in withheld.messages:
                message.close()
        request.withheld.clear()

    def clear(self) -> None:
        self._in_flight.clear()
        self._buffered.clear()
        self._pending_scores.clear()

    def _read(self, read: _StepInFlight) -> None:
        for request in read.requests:
            request.steps_in_flight -= 1
            if self.drafts.drafted and request.status.takes_tokens:
                request.gain_history.read()
        step, scored, drafts = read.step, list[_Scored](), DraftCounts()
        launch, rows = step.launch, step.requests.rows
        results = step.tokens.read(len(rows)) if step.tokens is not None else []
        for row, (scheduled, result) in enumerate(zip(rows, results, strict=True)):
            request, count, verified = scheduled.request, result[NUM_TOKENS], 0
            self.further_tokens += max(count - 1, 0)
            if self.drafts.drafted:
                verified, gain = DraftHandoffFields(*result[-REPORTED:])
                if launch.packed.chunks is None and request.status.takes_tokens:
                    # Of steps that could have had drafts.
                    request.gain_history.report(gain, verifies=launch.drafts > 0)
                _correct_bounds(request, launch.drafts, count)
            if not request.status.takes_tokens:
                self.discarded += count
                continue
            is_scored = request.sampling.logprobs is not None and request.finish_reason is None
            first = len(request.outputs)
            taken, reason = self._process(scheduled, RowStatus(result[STATUS]), result[IDS : IDS + count], step.payload)
            if taken and launch.drafts:
                # A request's last token counts as no draft, as at `max_tokens`: only the device knows whether the id that stopped
                # it was the draft in its place. So the step gave `1 + accepted` tokens, however the request ended.
                counted = verified if reason is None else taken - 1
                request.drafts.add(counted, taken - 1)
                drafts.add(counted, taken - 1)
            if is_scored:
                # Those that joined the outputs: a stop string may end the request before the last one.
                positions = enumerate(range(first, len(request.outputs)), row * (1 + launch.drafts))
                scored += [_Scored(request, position, index) for position, index in positions]
            if reason is not None:
                self.discarded += count - taken
                self._callbacks.finish_request(request, reason, scheduled.table)
        if drafts.drafted:
            self.drafts.merge(drafts)
            self._callbacks.report_drafts(launch.number, drafts)
        if step.scores is not None:
            self._pending_scores.append((step.scores, scored))
        # After all payload of the step is emitted: the end of a request triggers a search for free blocks.
        for table in read.tables:
            table.unread -= 1
        for request in read.requests:
            if request.table is None and not request.steps_in_flight:
                self._drained(request)

    def _process(
        self, scheduled: ScheduledRequest, status: RowStatus, ids: Sequence[int], payload: PayloadHandoff
    ) -> tuple[int, str | None]:
        """Returns the number of tokens that the request takes, and its finish reason if they end it."""
        request = scheduled.request
        if request.finish_reason is not None and payload.hidden is not None:
            self._outbox.append(self._hidden(scheduled, payload.hidden))
            self._callbacks.finish_request(request, request.finish_reason, scheduled.table)
            return 0, None
        newest = ids[-1] if ids else None
        if newest in (NOT_FINITE, IMPOSSIBLE) and len(ids) > 1:
            # Such an id is no draft, so it is the last. The accepted ones before it are the request's, as one by one.
            before, reason = self._process(scheduled, RowStatus.RUNNING, ids[:-1], payload)
            if reason is not None:
                return before, reason
        if newest == NOT_FINITE or (newest == IMPOSSIBLE and not _excludes_ids(request)):
            self._fail_without_numbers(request, "sampling")
            return 0, None
        if newest == IMPOSSIBLE:
            problem = "leaves no token that may come next"
            makers = ["the model", *(f"processor {name!r}" for name in sorted(request.sampling.processors or ()))]
            remedy = (
                f"suppress, bias or structure less, or allow more (or logits of {' or '.join(makers)} were no numbers)"
            )
            self._callbacks.fail_request(request, "sampling", InputError("sampling", problem, remedy))
            return 0, None
        if scheduled.emits_hidden and payload.hidden is not None:
            assert request.prompt is not None
            positions_m = request.prompt.payload_positions
            self._outbox.append(
                self._page_slice(scheduled.table, PromptHidden(), "hidden", positions_m, payload.hidden)
            )
        if self._interval > 1 and self._may_buffer(request):
            self._buffer(scheduled, status, ids, payload.codes)
        else:
            taken = self._emit(scheduled, status, ids, payload)
            if taken is not None:
                return taken, "stop"
        if request.table is None:
            request.reset_for_recompute()  # preempted meanwhile: it and its bounds continue after these tokens
        if status.finished:
            self.emit_withheld(request)
            return len(ids), status.reason
        if request.host_processors:
            self._host_processors.submit(request, ids)
        return len(ids), None

    def _emit(
        self, scheduled: ScheduledRequest, status: RowStatus, ids: Sequence[int], payload: PayloadHandoff
    ) -> int | None:
        """Emits each token by itself, or withholds it. Returns the number that the request takes if a stop string ends it."""
        request = scheduled.request
        for count, token in enumerate(ids, 1):
            ends = status is RowStatus.STOPPED and count == len(ids)
            messages = [Produced(request.id, Payload(GeneratedTokens(ids=(token,), ends=ends)), COMPLETED)]
            if self._emits_tokens and payload.hidden is not None:
                # The hidden state belongs to the token before and is emitted with it: this token may be withheld.
                before = request.withheld[-1].messages if request.withheld else self._outbox
                before.append(self._hidden(scheduled, payload.hidden))
            if payload.codes is not None and (status.has_frame or count < len(ids)):
                messages.append(self._frame(scheduled, payload.codes))
            request.outputs.append(token)
            if request.stops is None:
                self._outbox.extend(messages)
            elif self._withhold(request, request.stops.push(token), WithheldToken(token, messages)):
                return count
        return None

    def _may_buffer(self, request: ArRequest) -> bool:
        """Whether the tokens of the request may share a payload. They may not with stop strings, nor if log-probabilities or a
        hidden state follow each token separately."""
        return request.stops is None and request.sampling.logprobs is None and not self._emits_tokens

    def _buffer(
        self, scheduled: ScheduledRequest, status: RowStatus, ids: Sequence[int], codes: WrittenPages | None
    ) -> None:
        request, buffered = scheduled.request, self._buffered.get(scheduled.request)
        if buffered is not None and buffered.table is not scheduled.table:
            self.emit_buffered(request)
            buffered = None
        if buffered is None:
            buffered = self._buffered[request] = BufferedTokens(scheduled.table)
        buffered.ids += ids
        buffered.ends = status is RowStatus.STOPPED
        if codes is not None:
            first, count = request.length + len(request.outputs), len(ids) - (not status.has_frame)
            buffered.positions += range(first, first + count)
            buffered.frames = codes
            request.num_frames += count
        request.outputs += ids
        if len(buffered.ids) >= self._interval or len(request.outputs) <= self._interval:
            self.emit_buffered(request)

    def _fail_without_numbers(self, request: ArRequest, doing: str) -> None:
        name = method_name(self._logits, "logits")
        problem = f"{name} gave NaN or infinity: see the model, its inputs and its dtype"
        self._callbacks.fail_request(request, doing, ReturnedError(problem, self._logits))

    def _withhold(self, request: ArRequest, verdict: StopVerdict, token: WithheldToken) -> bool:
        """Emits the tokens that cannot be part of a stop string. Returns whether a stop string ends the request."""
        request.withheld.append(token)
        self.emit_withheld(request, verdict.withheld)
        return verdict.stopped

    def _hidden(self, scheduled: ScheduledRequest, written: WrittenPages) -> Produced:
        """The hidden state before the request's next token, in the slot of the token before it."""
        index = len(scheduled.request.outputs)
        position = np.array([scheduled.request.length + index - 1], np.int64)
        return self._page_slice(scheduled.table, TokenHidden(index=index), "hidden", position, written)

    def _frame(self, scheduled: ScheduledRequest, written: WrittenPages) -> Produced:
        """The frame that the request's next token begins, in the slot of that token."""
        request = scheduled.request
        request.num_frames += 1
        position = np.array([request.length + len(request.outputs)], np.int64)
        return self._page_slice(scheduled.table, TokenCodes(), "codes", position, written)

    def _page_slice(
        self, table: BlockTable, meta: msgspec.Struct, name: str, positions_n: NDArray[np.int64], written: WrittenPages
    ) -> Produced:
        """A payload in pages. positions_n: positions of the tokens in whose slots it is."""
        part = PageSlice(written.pages, table.slots(positions_n, self._size))
        produced = Produced(table.owner, Payload(meta, {name: part}), written.ready)
        table.add(produced)
        return produced

    def _read_scores(self, scores: ScoreHandoff, tokens: Sequence[_Scored]) -> None:
        self.unread_scores -= 1
        fields = scores.host.read().view(np.int64)
        known = read_scores(fields[: scores.rows], scores.count)
        for one in tokens:
            asked = one.request.sampling.logprobs
            if one.request.status is RequestStatus.FINISHED:
                continue
            if np.isnan(known.logprobs_nk[one.row]).any():
                self._fail_without_numbers(one.request, "reading its scores")
            elif asked is not None:
                self._outbox.append(_for_user(one.request, known.chunk(one.row, 1, asked, one.index)))
        for part in scores.chunks:
            asked = part.request.sampling.prompt_logprobs
            if asked is not None and part.request.status is not RequestStatus.FINISHED:
                start = scores.rows + part.start
                prompt = read_scores(fields[start : start + part.count], scores.prompt_count)
                if np.isnan(prompt.logprobs_nk).any():
                    self._fail_without_numbers(part.request, "reading its scores")
                    continue
                chunk = prompt.chunk(0, part.count, asked, part.first, prompt=True)
                self._outbox.append(_for_user(part.request, chunk))
        scores.host.release()
        for request in scores.requests:
            request.unread_scores -= 1
            if request.status is RequestStatus.WAITING_FOR_LOGPROBS and not request.unread_scores:
                assert request.finish_reason is not None
                self._callbacks.finish_request(request, request.finish_reason)


def _correct_bounds(request: ArRequest, drafts: int, count: int) -> None:
    """Corrects the request's bounds by the number of tokens that a step gave. drafts: maximum that it could verify of a row."""
    if drafts:
        request.num_computed_tokens -= 1 + drafts - count
        request.num_scheduled_outputs += count - 1


_EXCLUDING = Need.BIAS | Need.FORBIDDEN | Need.BAD_WORDS | Need.MIN_TOKENS


def _excludes_ids(request: ArRequest) -> bool:
    """Whether the parameters of the request can exclude every id. If they cannot, the logits were not numbers."""
    return bool(request.flags.needs & _EXCLUDING or request.flags.processors or request.host_processors)


def _for_user(request: ArRequest, chunk: LogprobsChunk) -> Produced:
    return Produced(request.id, Payload(chunk), COMPLETED, for_user=True)
