"""Decides what runs in the next step. Host only; knows upper bounds, never device state."""

from bisect import insort
from collections.abc import Iterator

from omni.errors import InputError
from omni_ar.run.allocator import Allocator
from omni_ar.run.limits import MAX_STARTS, Limits
from omni_ar.run.plan import NewBlock, PrefillChunk, StepPlan
from omni_ar.run.request import ArRequest
from omni_ar.run.waiting import WaitingQueue


class Scheduler:
    """Every row that can decode does; the rest of the step's token budget goes to prompts, in chunks, by rank.

    When blocks run out, a request that needs one takes them from paused requests, then from those of a higher rank than its own. A
    waiting request takes them from paused ones only. So whoever has the lowest rank always gets on, and all others after it.
    """

    def __init__(self, allocator: Allocator, limits: Limits, conditioned: bool, lag: int = 1) -> None:
        """lag: `TokenSource.lag`, how many steps after its last one a row may be in one again."""
        self._allocator = allocator
        self._limits = limits
        self._conditioned = conditioned
        self._lag = lag
        self._can_score = True
        self._waiting = WaitingQueue()
        self._returning = WaitingQueue()
        """Requests that wait and have a row: where there is none left, those without one must not hold them up."""
        self._parked: set[ArRequest] = set()
        self._running: list[ArRequest] = []
        self._faulty: list[ArRequest] = []
        self._suspects: list[ArRequest] = []
        self._alone = False
        self._steps = 0

    def check(self, request: ArRequest, stage: str) -> None:
        """Sets the request's token limit. Raises InputError if it can never run here. stage: its name, for errors."""
        assert request.prompt is not None
        length, most = request.length, self._limits.max_model_len
        if length < 1:
            raise InputError("prompt", "is empty", "give at least one token")
        if length >= most:
            problem = f"has {length} tokens, and {stage} takes {most} with at least one generated"
            raise InputError("prompt", problem, f"shorten it or raise {stage}.max_model_len")
        if request.prompt.penalized_ids.size > most:
            problem = f"are {request.prompt.penalized_ids.size}, and {stage} has room for {most}"
            raise InputError("prompt.penalized_ids", problem, f"name fewer or raise {stage}.max_model_len")
        assert request.sampling.max_tokens is not None
        request.max_tokens = min(request.sampling.max_tokens, most - length)
        need, has = self._allocator.blocks_for(length + request.max_tokens), self._allocator.capacity
        if need > has:
            total = length + request.max_tokens
            problem = f"prompt and output of {total} tokens need {need} blocks, and {stage} has {has}"
            raise InputError(f"sampling.{stage}.max_tokens", problem, f"ask for fewer or raise {stage}.num_blocks")

    def add(self, request: ArRequest) -> None:
        """Queues a checked request whose prompt is ready."""
        request.rewind()
        self._enqueue(request)

    def wake(self, request: ArRequest) -> None:
        """What the request waited for (conditioning, a consumer, its tokens, its host processors) may have come."""
        if request in self._parked:
            self._parked.discard(request)
            self._enqueue(request)

    def remove(self, request: ArRequest) -> None:
        """Forgets a request, if it is here. Its row and table stay with the caller."""
        self._dequeue(request)
        self._parked.discard(request)
        for group in (self._running, self._faulty, self._suspects):
            if request in group:
                group.remove(request)

    def retry(self, plan: StepPlan) -> None:
        """The plan's step failed, and any of its requests may be at fault: each runs again, by itself."""
        for request in plan.requests:
            request.suspect = True
            self._running.remove(request)
            if request not in self._suspects:
                self._suspects.append(request)
            self._faulty.append(request)

    def plan(self, can_score: bool = True) -> StepPlan | None:
        """What can run now, or None. can_score: whether the step may be asked for log-probabilities; requests that ask wait."""
        if can_score and not self._can_score:
            for request in [request for request in self._parked if request.wants_scores]:
                self.wake(request)
        self._can_score = can_score
        self._faulty = [request for request in self._faulty if not self._allocator.evict(request)]
        suspects = sorted(self._ready_suspects(), key=_rank)
        # Suspects and the others take turns, and whoever cannot use theirs leaves it to the next.
        turns = [None, *suspects] if self._alone else [*suspects, None]
        for alone in turns:
            plan = self._compose(alone)
            if plan is not None:
                self._alone = alone is not None
                return plan
        return None

    def launched(self, plan: StepPlan) -> None:
        """The plan's step is on the device."""
        step = plan.step
        for request in plan.decodes:
            request.computed += 1
            request.scheduled += 1
            request.edit = None
            request.newest_step = step
        for chunk in plan.chunks:
            request = chunk.request
            request.row_ready = True
            request.computed += chunk.length
            request.newest_step = step
            if not chunk.replay:
                request.scored = max(request.scored, min(chunk.start + chunk.length, request.length - 1))
            if chunk.last:
                request.scheduled += 1
                request.edit = None
                request.saved_codes = None
                if request.suspect:
                    request.suspect = False
                    self._suspects.remove(request)
        self._allocator.launched(plan)

    def _compose(self, alone: ArRequest | None) -> StepPlan | None:
        decodes, new_blocks = self._decodes(alone)
        budget = max(1, self._limits.max_num_batched_tokens - len(decodes))
        chunks = list(self._chunks(alone, budget))
        if not decodes and not chunks:
            return None
        chunks.sort(key=lambda chunk: not chunk.replay)
        self._steps += 1
        return StepPlan(self._steps, tuple(decodes), tuple(chunks), tuple(new_blocks))

    def _decodes(self, alone: ArRequest | None) -> tuple[list[ArRequest], list[NewBlock]]:
        decodes: list[ArRequest] = []
        new_blocks: list[NewBlock] = []
        for request in tuple(self._running):
            if not request.decoding or not self._may_run(request, alone) or not request.can_step(self._conditioned):
                continue
            if self._lag > 1 and request.in_flight and self._steps + 1 < request.newest_step + self._lag:
                continue  # its newest token is not there yet
            new = self._allocator.grow(request, ())
            if new is None:
                new = self._allocator.grow(request, self._victims(request))
                self._sweep()
            if new is not None:
                decodes.append(request)
                new_blocks += new
        if new_blocks:
            new_blocks += self._allocator.grow_ahead(decodes)
        return decodes, new_blocks

    def _chunks(self, alone: ArRequest | None, tokens: int) -> Iterator[PrefillChunk]:
        """Chunks of at most `tokens` in all: of requests that have begun, then of those that can."""
        budget = _Budget(tokens, self._limits.scored_tokens)
        for request in tuple(self._running):
            if not request.decoding and self._may_run(request, alone) and budget.left(request):
                yield budget.take(request)
        for _ in range(MAX_STARTS):
            started = None if budget.spent else self._start(alone)
            if started is None:
                return
            yield budget.take(started)

    def _start(self, alone: ArRequest | None) -> ArRequest | None:
        """Seats who is next, if there is room."""
        request = self._next_waiting() if alone is None else alone if alone.table is None else None
        if request is None or self._passes_over_suspect(request):
            return None
        paused = [other for other in reversed(self._running) if other.paused and _evictable(other)]
        headroom = sum(other.decoding and not other.paused for other in self._running)
        try:
            seated = self._allocator.seat(request, paused, headroom)
        except Exception as error:  # host work on what the request brought, such as hashing it
            seated = False
            self._allocator.failures.append((request.id, "planning", error))
        self._sweep()
        if not seated:
            return None
        self._dequeue(request)
        insort(self._running, request, key=_rank)
        return request

    def _next_waiting(self) -> ArRequest | None:
        lines = (self._returning, self._waiting) if self._allocator.rows_left else (self._returning,)
        while heads := [head for line in lines if (head := line.head()) is not None]:
            request = min(heads, key=_rank)
            if self._may_start(request):
                return request
            # It holds up nobody: others go first until it is woken.
            self._dequeue(request)
            self._parked.add(request)
        return None

    def _enqueue(self, request: ArRequest) -> None:
        (self._waiting if request.row is None else self._returning).add(request)

    def _dequeue(self, request: ArRequest) -> None:
        self._waiting.discard(request)
        self._returning.discard(request)

    def _passes_over_suspect(self, request: ArRequest) -> bool:
        """Whether a suspect that waits for blocks, perhaps for these, comes first."""
        return any(suspect.table is None and suspect.rank < request.rank for suspect in self._ready_suspects())

    def _ready_suspects(self) -> list[ArRequest]:
        return [request for request in self._suspects if request not in self._faulty and self._may_start(request)]

    def _waits_for_scores(self, request: ArRequest) -> bool:
        """Whether the step would have log-probabilities to give, and there is no room for them now."""
        return not self._can_score and request.wants_scores

    def _may_run(self, request: ArRequest, alone: ArRequest | None) -> bool:
        if request.paused or self._waits_for_scores(request):
            return False
        return request is alone if alone is not None else not request.suspect

    def _may_start(self, request: ArRequest) -> bool:
        # What is in flight of a preempted request is confirmed first: it starts again behind that, and no token comes twice.
        ready = not request.paused and not request.unread and not self._waits_for_scores(request)
        return ready and not request.awaits_step and request.can_step(self._conditioned)

    def _victims(self, request: ArRequest) -> list[ArRequest]:
        """Who gives way to the request, the first first."""
        evictable = [other for other in reversed(self._running) if other is not request and _evictable(other)]
        paused = [other for other in evictable if other.paused]
        return paused + [other for other in evictable if not other.paused and other.rank > request.rank]

    def _sweep(self) -> None:
        """Queues again who was evicted."""
        for request in [request for request in self._running if request.table is None]:
            self._running.remove(request)
            if not request.suspect:
                self._enqueue(request)


def _rank(request: ArRequest) -> tuple[int, ...]:
    return request.rank


def _evictable(request: ArRequest) -> bool:
    return request.table is not None


class _Budget:
    """What is left of a step for chunks: tokens, and among them prompt tokens to be scored."""

    def __init__(self, tokens: int, scored: int) -> None:
        self._tokens = tokens
        self._scored = scored
        self._scores = scored > 0

    @property
    def spent(self) -> bool:
        """Whether there is nothing left for some request."""
        return not self._tokens or (self._scores and not self._scored)

    def left(self, request: ArRequest) -> int:
        """Tokens of the request that may still join."""
        return min(self._tokens, self._scored) if request.scores_prompt else self._tokens

    def take(self, request: ArRequest) -> PrefillChunk:
        """The request's next chunk. Something must be left for it."""
        chunk = _next_chunk(request, self.left(request))
        self._tokens -= chunk.length
        self._scored -= chunk.length if request.scores_prompt else 0
        return chunk


def _next_chunk(request: ArRequest, budget: int) -> PrefillChunk:
    replay = request.computed >= request.length
    end = min(request.target if replay else request.length, request.computed + budget)
    length = end - request.computed
    first, last = not request.row_ready, end == request.target
    return PrefillChunk(request, request.computed, length, first, last, replay)
