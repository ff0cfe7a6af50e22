"""Selects the requests of each step. Runs on the host only, with upper bounds instead of device state."""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

from omni.errors import InputError
from omni.stage import Listeners
from omni.utils.draft_counts import DraftCounts
from omni_ar.options import MAX_IN_FLIGHT
from omni_ar.run.allocator import Allocator
from omni_ar.run.draft_policy import DraftPolicy
from omni_ar.run.gain_history import LAG
from omni_ar.run.limits import MAX_STARTS, Limits
from omni_ar.run.plan import NewBlock, PrefillChunk, StepPlan
from omni_ar.run.request import ArRequest, RequestStatus

_SCHEDULED = [status for status in RequestStatus if RequestStatus.WAITING <= status <= RequestStatus.RUNNING_ISOLATED]


class Scheduler:
    """A step decodes every row that can decode, or those of one micro-batch (`Limits.micro_batches`). Prefill chunks take the rest
    of the step's token budget, in serving order.

    When blocks run out, a request takes them from paused requests, then from running requests after it in serving order; a
    waiting one from paused requests only. So the first request in serving order always progresses, and then all others.
    """

    def __init__(
        self,
        allocator: Allocator,
        limits: Limits,
        conditioned: bool,
        policy: DraftPolicy,
        *,
        listeners: Listeners | None = None,
    ) -> None:
        """listeners: prefill chunks are bounded while the slack of one is short; None for no bound."""
        self._allocator = allocator
        self._limits = limits
        self._conditioned = conditioned
        self._policy = policy
        self._listeners = listeners
        self._can_score = True
        self._requests: dict[RequestStatus, list[ArRequest]] = {status: [] for status in _SCHEDULED}
        """The requests of each status, in serving order. Only `move` changes these lists."""
        self._waiting = self._requests[RequestStatus.WAITING]
        self._preempted = self._requests[RequestStatus.PREEMPTED]
        self._blocked = self._requests[RequestStatus.BLOCKED]
        self._running = self._requests[RequestStatus.RUNNING]
        self._isolating = self._requests[RequestStatus.ISOLATING]
        self._isolated = self._requests[RequestStatus.ISOLATED]
        self._running_isolated = self._requests[RequestStatus.RUNNING_ISOLATED]
        self._ran_isolated = False
        """Whether the last step ran an isolated request."""
        self._steps = 0
        self._drafted: list[ArRequest] = []
        """The requests whose gains the last step counted."""
        self._starved: ArRequest | None = None
        """The first request whose decode step in the present plan has too few blocks."""

    def checked_max_tokens(self, request: ArRequest, stage: str) -> int:
        """Returns the maximum number of tokens that the request generates. Raises InputError if it can never run here. stage: the
        stage's name, for errors."""
        assert request.prompt is not None
        length, most = request.length, self._limits.max_model_len
        if length < 1:
            raise InputError("prompt", "is empty", "give at least one token")
        if length >= most:
            problem = f"has {length} tokens, and {stage} takes {most} with at least one generated"
            raise InputError("prompt", problem, "shorten it", f"raise {stage}.max_model_len")
        if request.prompt.penalized_ids.size > most:
            problem = f"are {request.prompt.penalized_ids.size}, and {stage} takes at most {most}"
            raise InputError("prompt.penalized_ids", problem, "name fewer", f"raise {stage}.max_model_len")
        assert request.sampling.max_tokens is not None
        max_tokens = min(request.sampling.max_tokens, most - length)
        need, has = self._allocator.blocks_for(length + max_tokens), self._allocator.capacity
        if need > has:
            total = length + max_tokens
            problem = f"prompt and output of {total} tokens need {need} blocks, and {stage} has {has}"
            raise InputError(f"sampling.{stage}.max_tokens", problem, "ask for fewer", f"raise {stage}.num_blocks")
        return max_tokens

    def add(self, request: ArRequest) -> None:
        """Queues a checked request whose inputs are ready."""
        request.reset_for_recompute()
        self.move(request, RequestStatus.WAITING)

    def unblock(self, request: ArRequest) -> None:
        """Queues a blocked request again, after one of the inputs that it may wait for has arrived."""
        if request.status is RequestStatus.BLOCKED:
            self.move(request, RequestStatus.WAITING if request.row is None else RequestStatus.PREEMPTED)

    def retry(self, plan: StepPlan) -> None:
        """Isolates the requests of a failed step, any of which may be the cause: each will run again in steps of its own."""
        for request in plan.requests:
            self.move(request, RequestStatus.ISOLATING)

    def plan(self, can_score: bool = True) -> StepPlan | None:
        """Plans the next step; None if nothing can run. can_score: whether it may compute log-probabilities; others wait."""
        if can_score and not self._can_score:
            for request in [request for request in self._blocked if request.wants_scores]:
                self.unblock(request)
        self._can_score = can_score
        for request in tuple(self._isolating):
            if self._allocator.preempt(request):
                self.move(request, self._status_after_preemption(request))
        in_order = sorted((*self._isolated, *self._running_isolated), key=_order)
        ready = [request for request in in_order if self._can_start(request)]
        # Isolated requests and the others take turns; a request that cannot use its turn passes it on.
        turns = [None, *ready] if self._ran_isolated else [*ready, None]
        for isolated in turns:
            plan = self._compose(isolated)
            if plan is not None:
                self._ran_isolated = isolated is not None
                return plan
        return None

    def launched(self, plan: StepPlan) -> None:
        rows = len(plan.decodes) + len(plan.chunks)
        for request in plan.decodes:
            request.num_computed_tokens += 1 + plan.drafts
            request.num_scheduled_outputs += 1  # at least
            request.edit = None
            request.last_scheduled_step = plan.number
        for chunk in plan.chunks:
            request = chunk.request
            request.num_computed_tokens += chunk.length
            if chunk.first:
                policy, undrafted = self._policy, request.undrafted
                gain, probe = (0, 0) if undrafted else (policy.start_gain(rows), policy.probe_steps)
                request.gain_history.restart(gain, probe=probe)
                if not undrafted and not request.drafts.drafted:
                    request.drafts = DraftCounts(policy.drafts)
            request.last_scheduled_step = plan.number
            if not chunk.replay:
                scored = min(chunk.start + chunk.length, request.length - 1)
                request.num_scored_tokens = max(request.num_scored_tokens, scored)
            if chunk.last:
                request.num_scheduled_outputs += 1
                request.edit = None
                request.saved_codes = None
                if request.status is RequestStatus.RUNNING_ISOLATED:
                    self.move(request, RequestStatus.RUNNING)
        self._allocator.launched(plan)

    def move(self, request: ArRequest, status: RequestStatus) -> None:
        """Changes the request's status and moves it to the list of that status, if it is scheduled there."""
        before = self._requests.get(request.status)
        request.set_status(status)
        if before is not None:
            del before[before.index(request, bisect_left(before, request.order, key=_order))]
        if status in self._requests:
            insort(self._requests[status], request, key=_order)
        if not self._running and not self._running_isolated:
            self._drafted = []  # frees the requests

    def _compose(self, isolated: ArRequest | None) -> StepPlan | None:
        running = self._runnable(isolated)
        decoding = [request for request in running if request.decoding]
        self._starved = None
        decodes, new_blocks = self._decode_batch(self._batches(decoding, due=True))
        # A decode may have preempted some of them.
        prefills = [request for request in running if request.table is not None and not request.decoding]
        budget = max(1, self._limits.max_num_batched_tokens - len(decodes))
        if self._listeners is not None and (prefills or self._waiting or self._preempted) and self._listeners.short:
            # A long step would delay the decode of that listener's request, at this stage or at another stage of the device.
            budget = min(budget, self._limits.short_slack_prefill_tokens)
        chunks = sorted(self._chunks(prefills, isolated, budget), key=lambda chunk: not chunk.replay)
        if not decodes and not chunks:
            # With fewer rows than micro-batches: the device waits for the rows' newest tokens.
            decodes, new_blocks = self._decode_batch(self._batches(decoding, due=False))
            if not decodes:
                return None
        self._steps += 1
        # Without a drafter, no gain is computed.
        wants = self._policy.drafts > 0 and self._policy.pays(self._draft_gains(decodes))
        drafts = self._policy.drafts if wants and not chunks else 0
        return StepPlan(self._steps, tuple(decodes), tuple(chunks), tuple(new_blocks), drafts, wants)

    def _draft_gains(self, decodes: Sequence[ArRequest]) -> list[int]:
        """The gains by which the step decides on drafts: of its rows, and of rows beside them that ended less than `LAG` steps
        before. With more steps in flight the host does not know yet that they ended; so the number of steps in flight changes no
        decision."""
        gains = [request.draft_gain for request in decodes]
        if self._limits.micro_batches > 1:
            return gains
        before, self._drafted = self._drafted, [*decodes]
        if any(request in before for request in decodes):
            for request in before:
                if request.has_all_steps and (request.status.takes_tokens or request.steps_ahead < LAG - 1):
                    gains.append(request.draft_gain)
                    request.steps_left_out += 1
                    self._drafted.append(request)
        return gains

    def _batches(self, decoding: Sequence[ArRequest], *, due: bool) -> Iterator[Sequence[ArRequest]]:
        """Divides the decoding rows into micro-batches of equal size, the least recently scheduled rows first: the one of this
        step, then those to be tried if none of its rows gets its block. due: only rows whose newest token is available when the
        step runs."""
        batches = self._limits.micro_batches
        if batches == 1:
            if due:
                yield decoding
            return
        # With more steps in flight, a request's reports on drafts would be read after they count (`gain_history.LAG`).
        able = [one for one in decoding if one.can_step(self._conditioned) and one.steps_in_flight < MAX_IN_FLIGHT]
        size = max(1, -(-len(able) // batches))
        if due:
            able = [one for one in able if one.last_scheduled_step + batches <= self._steps + 1]
        able.sort(key=lambda one: one.last_scheduled_step)
        for start in range(0, len(able), size):
            yield sorted(able[start : start + size], key=_order)

    def _decode_batch(self, batches: Iterator[Sequence[ArRequest]]) -> tuple[list[ArRequest], list[NewBlock]]:
        decodes, new_blocks = next((made for batch in batches if (made := self._decodes(batch))[0]), ([], []))
        return decodes, new_blocks

    def _decodes(self, requests: Sequence[ArRequest]) -> tuple[list[ArRequest], list[NewBlock]]:
        decodes: list[ArRequest] = []
        new_blocks: list[NewBlock] = []
        for request in requests:
            # An earlier request may have preempted this one.
            if request.table is None or not request.can_step(self._conditioned):
                continue
            new = self._allocator.extend(request, ())
            if new is None:
                new = self._allocator.extend(request, self._victims(request))
                self._move_preempted()
            if new is not None:
                decodes.append(request)
                new_blocks += new
            elif self._starved is None:
                self._starved = request
        if new_blocks:
            new_blocks += self._allocator.extend_early(decodes)
        return decodes, new_blocks

    def _chunks(self, prefills: Sequence[ArRequest], isolated: ArRequest | None, tokens: int) -> Iterator[PrefillChunk]:
        """Chunks of at most `tokens` tokens in total: of requests that have begun, then of those that can start."""
        budget = _Budget(tokens, self._limits.scored_tokens)
        for request in prefills:
            if budget.left(request):
                yield budget.take(request, first=False)
        for _ in range(MAX_STARTS):
            started = None if budget.spent else self._start(isolated)
            if started is None:
                return
            yield budget.take(started, first=True)

    def _start(self, isolated: ArRequest | None) -> ArRequest | None:
        """Gives the next request its row and blocks, if available."""
        if isolated is not None and isolated.status is not RequestStatus.ISOLATED:
            return None
        request = self._next_waiting() if isolated is None else isolated
        if request is None or any(other.order < request.order and self._can_start(other) for other in self._isolated):
            return None  # an earlier isolated request waits for blocks, possibly the same ones
        if self._starved is not None and self._starved.order < request.order:
            # It may have preempted this request, whose blocks are not free yet. If it started again, they would never be free.
            return None
        running = self._holders()
        paused = [other for other in reversed(running) if other.paused]
        headroom = sum(other.decoding and not other.paused for other in running)
        try:
            allocated = self._allocator.allocate(request, paused, headroom)
        except Exception as error:  # host work on the request's data, such as hashing
            self._allocator.failures.append((request.id, "planning", error))
            self.move(request, RequestStatus.FAILED)
            allocated = False
        self._move_preempted()
        if not allocated:
            return None
        self.move(request, RequestStatus.RUNNING if isolated is None else RequestStatus.RUNNING_ISOLATED)
        return request

    def _next_waiting(self) -> ArRequest | None:
        # Without a free row, requests with a row must not wait for those without one.
        queues = (self._preempted, self._waiting) if self._allocator.rows_left else (self._preempted,)
        while heads := [queue[0] for queue in queues if queue]:
            request = min(heads, key=_order)
            if self._can_start(request):
                return request
            self.move(request, RequestStatus.BLOCKED)
        return None

    def _can_start(self, request: ArRequest) -> bool:
        # The host first reads a preempted request's steps in flight: the request starts after them, so no token is
        # generated twice.
        if request.paused or request.steps_in_flight or (request.wants_scores and not self._can_score):
            return False
        return request.can_step(self._conditioned)

    def _runnable(self, isolated: ArRequest | None) -> list[ArRequest]:
        running = (
            self._running
            if isolated is None
            else [isolated]
            if isolated.status is RequestStatus.RUNNING_ISOLATED
            else []
        )
        return [request for request in running if not request.paused and (self._can_score or not request.wants_scores)]

    def _holders(self) -> list[ArRequest]:
        return (
            sorted((*self._running, *self._running_isolated), key=_order) if self._running_isolated else self._running
        )

    def _victims(self, request: ArRequest) -> list[ArRequest]:
        """Requests that give their blocks to this one, in order."""
        others = [other for other in reversed(self._holders()) if other is not request]
        paused = [other for other in others if other.paused]
        return paused + [other for other in others if not other.paused and other.order > request.order]

    def _move_preempted(self) -> None:
        """Moves the requests whose blocks the allocator has taken."""
        for request in [request for request in self._holders() if request.table is None]:
            self.move(request, self._status_after_preemption(request))

    def _status_after_preemption(self, request: ArRequest) -> RequestStatus:
        if any(owner == request.id for owner, _, _ in self._allocator.failures):
            return RequestStatus.FAILED
        return RequestStatus.PREEMPTED if request.status is RequestStatus.RUNNING else RequestStatus.ISOLATED


def _order(request: ArRequest) -> tuple[int, ...]:
    return request.order


class _Budget:
    """The remaining tokens of a step for chunks, and the remaining ones that may be scored."""

    def __init__(self, tokens: int, scored: int) -> None:
        self._tokens = tokens
        self._scored = scored
        self._scores = scored > 0

    @property
    def spent(self) -> bool:
        """Whether the budget of tokens, or of scored tokens, is used up."""
        return not self._tokens or (self._scores and not self._scored)

    def left(self, request: ArRequest) -> int:
        """Number of tokens of the request that may still join the step."""
        return min(self._tokens, self._scored) if request.scores_prompt else self._tokens

    def take(self, request: ArRequest, *, first: bool) -> PrefillChunk:
        """Takes the request's next chunk from the budget, for which `left` is positive. first: whether the step sets its row up."""
        start = request.num_computed_tokens
        replay = start >= request.length
        end = min(request.prefill_end if replay else request.length, start + self.left(request))
        length = end - start
        self._tokens -= length
        self._scored -= length if request.scores_prompt else 0
        return PrefillChunk(request, start, length, first=first, last=end == request.prefill_end, replay=replay)
