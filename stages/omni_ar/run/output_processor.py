"""What the host learns of launched steps, late: tokens first and alone, then log-probabilities."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from omni.device import COMPLETED
from omni.errors import InputError
from omni.payload import GeneratedTokens, PageSlice, Payload, TokenLogprobs
from omni.sampling import StopVerdict
from omni.stage import Outbound, Produced
from omni_ar.inputs import PromptHidden, TokenCodes, TokenHidden
from omni_ar.kernels.step.status import RowStatus
from omni_ar.run.blocks import BlockTable
from omni_ar.run.host_processors import HostProcessorExecutor
from omni_ar.run.request import ArRequest, Confirmed
from omni_ar.run.rows import RowTable
from omni_ar.run.state import IMPOSSIBLE
from omni_ar.run.step import PayloadHandoff, SampledStep, Scheduled, ScoreHandoff, Written


class Ender(Protocol):
    """Ends requests, for the worker."""

    def end_request(self, request: ArRequest, reason: str, held: Sequence[int] = ()) -> None: ...

    def give_up(self, request: ArRequest, doing: str, error: Exception) -> None: ...

    def settled(self, request: ArRequest) -> None:
        """The request was preempted, and nothing of it is in flight any more."""
        ...


@dataclass(frozen=True, slots=True)
class _Flight:
    """A launched step that the host has not read, and what it touches."""

    step: SampledStep
    requests: tuple[ArRequest, ...]
    tables: tuple[BlockTable, ...]


class _Scored(msgspec.Struct, frozen=True):
    """A token whose log-probability is on its way. place: its row in the step. index: which of the request's tokens."""

    request: ArRequest
    place: int
    index: int


class OutputProcessor:
    """Reads the handoffs of launched steps in order, and gives out what is certain.

    A token's payload is given out as soon as the token is confirmed, written or not: only its consumer asks the payload's event. A
    request's end waits for its log-probabilities, but no token does.
    """

    def __init__(
        self,
        rows: RowTable,
        host_processors: HostProcessorExecutor,
        outbox: deque[Outbound],
        ender: Ender,
        *,
        block_size: int,
        emits_tokens: bool,
    ) -> None:
        self.stale = 0
        """Tokens that nobody took, since their request was over when they came."""
        self.unread_scores = 0
        """Launched steps whose log-probabilities are unread."""
        self._rows = rows
        self._host_processors = host_processors
        self._outbox = outbox
        self._ender = ender
        self._size = block_size
        self._emits_tokens = emits_tokens
        self._flights: deque[_Flight] = deque()
        self._late: deque[tuple[ScoreHandoff, list[_Scored]]] = deque()

    @property
    def unread(self) -> int:
        """Steps in flight."""
        return len(self._flights)

    def launched(self, step: SampledStep, requests: Sequence[ArRequest]) -> None:
        """The step of these requests is on the device."""
        end = step.end
        tables = tuple([request.held_table for request in requests])
        for request, table in zip(requests, tables, strict=True):
            request.unread += 1
            table.unread += 1
            request.last_step = end
        if step.payload.hidden is not None:
            for scheduled in step.rows:
                # Now, and not when the token is read: the next step may be launched before.
                scheduled.request.hidden_sent |= scheduled.emits_hidden
        if step.scores is not None:
            self.unread_scores += 1
            for request in step.scores.requests:
                request.unread_scores += 1
        self._flights.append(_Flight(step, tuple(requests), tables))

    def poll(self) -> bool:
        """Takes in what has come."""
        moved = False
        while self._flights and self._flights[0].step.sampled.done():
            self._take(self._flights.popleft())
            moved = True
        while self._late and self._late[0][0].ready.done():
            self._take_scores(*self._late.popleft())
            moved = True
        return moved

    def give_out(self, request: ArRequest, keep: int = 0) -> None:
        """Gives out the tokens that were held back, but for the newest `keep`."""
        while len(request.held) > keep:
            self._outbox.extend(request.held.popleft().messages)

    def clear(self) -> None:
        """Forgets everything: the stage is closing."""
        self._flights.clear()
        self._late.clear()

    def _take(self, flight: _Flight) -> None:
        for request in flight.requests:
            request.unread -= 1
        step = flight.step
        if step.scores is not None:
            self._late.append((step.scores, self._scored(step)))
        results = step.tokens.read(len(step.rows)) if step.tokens is not None else []
        current = self._rows.current
        for scheduled, (status, count, *ids) in zip(step.rows, results, strict=True):
            if current(scheduled.row) and scheduled.request.ending is None:
                self._confirm(scheduled, RowStatus(status), ids[:count], step.payload)
            else:
                self.stale += count
        # Not before all payload of the step is given out: when one of its requests ends, its table's payload is looked through.
        for table in flight.tables:
            table.unread -= 1
        for request in flight.requests:
            if request.table is None and not request.unread:
                self._ender.settled(request)

    def _scored(self, step: SampledStep) -> list[_Scored]:
        """The tokens whose log-probabilities the step brings, as they are about to be confirmed."""
        rows = [(place, scheduled.request) for place, scheduled in enumerate(step.rows)]
        return [
            _Scored(request, place, len(request.outputs))
            for place, request in rows
            if request.sampling.logprobs is not None
            and request.ending is None
            and not request.closing
            and self._wanted(request)
        ]

    def _confirm(self, scheduled: Scheduled, status: RowStatus, ids: Sequence[int], payload: PayloadHandoff) -> None:
        request = scheduled.request
        if request.closing and payload.hidden is not None:
            self._outbox.append(self._hidden(scheduled, payload.hidden))
            self._ender.end_request(request, "stop")
            return
        if IMPOSSIBLE in ids:
            problem = "leaves no token that may come next"
            remedy = "suppress, bias or structure less, or allow more (or the model's logits were no numbers)"
            self._ender.give_up(request, "sampling", InputError("sampling", problem, remedy))
            return
        if scheduled.emits_hidden and payload.hidden is not None:
            self._outbox.append(self._prompt_hidden(scheduled, payload.hidden))
        for place, token in enumerate(ids, 1):
            ends = status is RowStatus.STOPPED and place == len(ids)
            messages = [Produced(request.id, Payload(GeneratedTokens(ids=(token,), ends=ends)), COMPLETED)]
            if self._emits_tokens and payload.hidden is not None:
                # It is of the token before, and goes with that one: this one may be withheld.
                before = request.held[-1].messages if request.held else self._outbox
                before.append(self._hidden(scheduled, payload.hidden))
            if payload.codes is not None and (status.has_frame or place < len(ids)):
                messages.append(self._frame(scheduled, payload.codes))
            request.outputs.append(token)
            if request.stops is None:
                self._outbox.extend(messages)
            elif self._hold(request, request.stops.push(token), Confirmed(token, messages)):
                return
        if request.table is None:
            request.rewind()  # preempted meanwhile: it goes on behind these tokens
        if status.over:
            self.give_out(request)
            self._ender.end_request(request, status.reason)
        elif request.host_processors:
            self._host_processors.ask(request, ids)

    def _hold(self, request: ArRequest, verdict: StopVerdict, confirmed: Confirmed) -> bool:
        """Gives out what cannot be part of a stop string any more. Returns whether one is complete, which ends the request."""
        request.held.append(confirmed)
        self.give_out(request, verdict.held)
        if verdict.stopped:
            self._ender.end_request(request, "stop", [one.token for one in request.held])
        return verdict.stopped

    def _prompt_hidden(self, scheduled: Scheduled, written: Written) -> Produced:
        prompt = scheduled.request.prompt
        assert prompt is not None
        return self._page_rows(scheduled, PromptHidden(), "hidden", prompt.payload_positions, written)

    def _hidden(self, scheduled: Scheduled, written: Written) -> Produced:
        """Of the request's next token: it lies where the token before it does."""
        index = len(scheduled.request.outputs)
        position = np.array([scheduled.request.length + index - 1], np.int64)
        return self._page_rows(scheduled, TokenHidden(index=index), "hidden", position, written)

    def _frame(self, scheduled: Scheduled, written: Written) -> Produced:
        """Of the request's next token: it lies where the token will."""
        request = scheduled.request
        request.frames += 1
        position = np.array([request.length + len(request.outputs)], np.int64)
        return self._page_rows(scheduled, TokenCodes(), "codes", position, written)

    def _page_rows(
        self, scheduled: Scheduled, meta: msgspec.Struct, name: str, positions_n: NDArray[np.int64], written: Written
    ) -> Produced:
        """A payload of page rows. positions_n: of the tokens in whose slots they are."""
        part = PageSlice(written.pages, scheduled.table.slots(positions_n, self._size))
        produced = Produced(scheduled.request.id, Payload(meta, {name: part}), written.ready)
        scheduled.table.add(produced)
        return produced

    def _take_scores(self, scores: ScoreHandoff, tokens: Sequence[_Scored]) -> None:
        self.unread_scores -= 1
        words = scores.host.read().view(np.int64)
        known = _read(words[: scores.rows], scores.count)
        for one in tokens:
            asked = one.request.sampling.logprobs
            if asked is not None and self._wanted(one.request):
                self._outbox.append(_for_user(one.request, known.chunk(one.place, 1, asked, one.index)))
        for part in scores.chunks:
            asked = part.request.sampling.prompt_logprobs
            if asked is not None and self._wanted(part.request):
                start = scores.rows + part.start
                prompt = _read(words[start : start + part.count], scores.prompt_count)
                self._outbox.append(
                    _for_user(part.request, prompt.chunk(0, part.count, asked, part.first, prompt=True))
                )
        scores.host.release()
        for request in scores.requests:
            request.unread_scores -= 1
            if request.ending is not None and not request.unread_scores and self._wanted(request):
                self._ender.end_request(request, *request.ending)

    def _wanted(self, request: ArRequest) -> bool:
        return request.row is not None and self._rows.current(request.row)


def _for_user(request: ArRequest, chunk: TokenLogprobs) -> Produced:
    return Produced(request.id, Payload(chunk), COMPLETED, for_user=True)


class _Known(NamedTuple):
    """Log-probabilities of n tokens, in memory of their own: the host slot that they came in is written again."""

    ids_nk: NDArray[np.int64]
    logprobs_nk: NDArray[np.float32]
    ranks_n: NDArray[np.int64]

    def chunk(self, start: int, count: int, asked: int, first: int, prompt: bool = False) -> TokenLogprobs:
        """Of `count` tokens, with `asked` of the likeliest ids each."""
        part, width = slice(start, start + count), 1 + asked
        ids_nk, logprobs_nk = self.ids_nk[part], self.logprobs_nk[part]
        if width < ids_nk.shape[1]:
            ids_nk, logprobs_nk = ids_nk[:, :width], logprobs_nk[:, :width]
        return TokenLogprobs(first=first, ids=ids_nk, logprobs=logprobs_nk, ranks=self.ranks_n[part], prompt=prompt)


def _read(words: NDArray[np.int64], count: int) -> _Known:
    """words: `[n, SCORE_WORDS]`, with `count` likeliest ids each."""
    width = 1 + count
    bits = np.ascontiguousarray(words[:, 1 + width : 1 + 2 * width])
    return _Known(words[:, 1 : 1 + width].copy(), bits.view(np.float64).astype(np.float32), words[:, 0].copy())
