"""Where requests wait: from `generate` to the stages."""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial

from omni.api.job import Job
from omni.api.prepare import Preparation, Preparer
from omni.api.serial_executor import SerialExecutor
from omni.api.ticket import Ticket
from omni.api.workers import GENERAL, Worker
from omni.engine import Admission, Engine, EngineOptions, Overloaded, Ranked
from omni.errors import OmniError, OverloadedError, StageError, known
from omni.frontend.messages import RemoteMedia
from omni.media import Downloads, MediaOptions

_log = logging.getLogger(__name__)

Effect = Callable[[], object]
"""What follows of a change for others. Called without the lock."""


class RequestQueue:
    """Downloads what requests need, has threads prepare them, and hands them to the engine; each by priority, then arrival.

    | a request | leaves for | when |
    |---|---|---|
    | joins | downloading, or the queue | `Admission` has it in |
    | waits for downloads | downloading, a URL at a time | few enough are under way |
    | is downloading | the queue | all is there |
    | is queued | a thread | one is free, and there is memory for what it becomes |
    | is being prepared | the ready ones | it is prepared |
    | is ready | the engine, an answer at a time | a place at the stages is free |

    All of them wait in the sense of `Admission`, and any of them may be told to give way, or be over from elsewhere (`over`): then
    it is gone at once. Only a thread that prepares it goes on to the end, for nobody.

    Called from any thread but those that Ctrl-C can interrupt.
    """

    def __init__(
        self, preparer: Preparer, downloads: Downloads, executor: SerialExecutor, limits: EngineOptions
    ) -> None:
        self._preparer = preparer
        self._engine: Engine = preparer.engine
        self._media: MediaOptions = preparer.options.media
        self._downloads = downloads
        self._executor = executor
        self._lock = threading.Lock()
        self._admission: Admission[Job] = Admission(
            limits.max_active_requests, limits.max_waiting_requests, limits.max_waiting_bytes, GENERAL + 1
        )
        self._active: set[str] = set()
        """Tickets of answers that the engine has."""
        self._jobs: dict[str, Job] = {}
        """By ticket, of answers that it does not have yet."""
        self._to_download: Ranked[Job] = Ranked()
        self._fetching = 0
        self._short: Ranked[Job] = Ranked()
        self._long: Ranked[Job] = Ranked()
        self._closed = False
        self._workers = [Worker(number, self._work, only_short=number == GENERAL) for number in range(GENERAL + 1)]
        self._idle = {
            short: [worker for worker in self._workers if worker.only_short == short] for short in (True, False)
        }

    def start(self) -> None:
        for worker in self._workers:
            worker.start()

    @property
    def waiting(self) -> int:
        """Requests that are not at the stages yet, all answers of one counted once."""
        return self._admission.waiting

    @property
    def held_bytes(self) -> int:
        """Host memory that they hold."""
        return self._admission.held_bytes

    def join(self, jobs: Sequence[Job]) -> None:
        """Requests come. They may be refused, or others may have to give way: they are told."""
        for job in jobs:
            self._change(partial(self._join, job))

    def over(self, ticket: Ticket) -> None:
        """An answer is over, or given up, wherever it was."""
        self._change(lambda: self._over(ticket))

    def close(self) -> None:
        """Lets nobody in any more. Does not wait for threads that prepare."""
        with self._lock:
            self._closed = True
        for worker in self._workers:
            worker.end()

    def join_threads(self, until: Callable[[], float]) -> None:
        """Waits for the threads. until: says how many seconds are left for that."""
        for worker in self._workers:
            worker.join(until())

    def _change(self, change: Callable[[], Iterable[Effect]]) -> None:
        """Applies it, and whatever has become possible."""
        with self._lock:
            effects = list(change())
            if not self._closed:
                effects += [*self._begin_downloads(), *self._let_in()]
                self._give_work()
        for effect in effects:
            try:
                effect()
            except BaseException:  # the others are to be told all the same
                _log.exception("a request could not be told what became of it")

    def _join(self, job: Job) -> Iterable[Effect]:
        job.tickets = {name: ticket for name, ticket in job.tickets.items() if not ticket.over}
        if not job.tickets:
            return []
        question = job.question
        if self._closed or question.error is not None:
            return _cancels(job, question.error or StageError("engine", "taking a request", "it is closed"))
        try:
            gave_way = self._admission.join(job.id, job, job.priority, len(self._active), question.held, ready=False)
        except OverloadedError as error:
            return _cancels(job, error)
        self._jobs |= dict.fromkeys(job.tickets, job)
        if question.remote:
            self._to_download.add(job.id, self._admission.rank(job.id), job)
        else:
            self._queue(job)
        return self._tell(gave_way)

    def _queue(self, job: Job) -> None:
        queue = self._short if job.question.short else self._long
        queue.add(job.id, self._admission.rank(job.id), job)

    def _begin_downloads(self) -> Iterable[Effect]:
        while (job := self._to_download.first()) is not None:
            if self._fetching >= self._media.max_downloads or not self._admission.may_grow(job.priority):
                return
            medium = job.to_download.popleft()
            if not job.to_download:
                self._to_download.remove(job.id)
            self._fetching += 1
            # Not in this thread, which may be the engine's.
            yield partial(self._executor.soon, partial(self._fetch, job, medium))

    def _fetch(self, job: Job, medium: RemoteMedia) -> None:
        future = self._downloads.fetch(medium.url, medium.field)
        with self._lock:
            waits = job.id in self._admission
            if waits:
                job.downloads[medium.url] = future
        if not waits:
            future.cancel()
        future.add_done_callback(partial(self._fetched, job, medium.url))

    def _fetched(self, job: Job, url: str, future: "Future[bytes]") -> None:
        self._change(lambda: self._take_download(job, url, future))

    def _take_download(self, job: Job, url: str, future: "Future[bytes]") -> Iterable[Effect]:
        self._fetching -= 1
        if job.id not in self._admission:
            return []
        error = CancelledError() if future.cancelled() else future.exception()
        if error is not None:
            return self._give_up(job, known("frontend", "downloading", error))
        job.downloaded[url] = future.result()
        if len(job.downloaded) == len(job.question.remote):
            job.downloads.clear()
            self._queue(job)
        held = [*job.question.held, *((data, len(data)) for data in job.downloaded.values())]
        try:
            return self._tell(self._admission.hold(job.id, held))
        except OverloadedError as overloaded:
            return self._give_up(job, overloaded)

    def _give_work(self) -> None:
        while True:
            short, long = self._short.first(), self._long.first()
            first = min(
                (job for job in (short, long) if job), key=lambda job: self._admission.rank(job.id), default=None
            )
            for job, idle in ((short, self._idle[True]), (first, self._idle[False])):
                if job is not None and idle and self._admission.may_grow(job.priority):
                    (self._short if job.question.short else self._long).remove(job.id)
                    idle.pop().give(job)
                    break
            else:
                return

    def _work(self, worker: Worker, job: Job) -> None:
        outcome: Preparation | OmniError | None
        try:
            outcome = self._prepare(job)
        except BaseException as error:  # whatever it is, its user is to know, and the worker is free again
            outcome = known("frontend", "preparing the request", error)
        self._change(partial(self._take_preparation, worker, job, outcome))

    def _prepare(self, job: Job) -> Preparation | OmniError | None:
        if all(ticket.over for ticket in list(job.tickets.values())):
            return None
        outcome = self._preparer.prepare(job.question, job.downloaded, job.answers)
        if isinstance(outcome, Preparation):
            # Before the engine can give anything.
            for ticket in list(job.tickets.values()):
                ticket.prepared(outcome.started)
        return outcome

    def _take_preparation(self, worker: Worker, job: Job, outcome: Preparation | OmniError | None) -> Iterable[Effect]:
        self._idle[worker.only_short].append(worker)
        job.forget_question()
        if job.id not in self._admission or outcome is None:
            return []
        if isinstance(outcome, OmniError):
            return self._give_up(job, outcome)
        job.requests = {name: outcome.requests[name] for name in job.tickets}
        return self._tell(self._admission.hold(job.id, outcome.held, ready=True))

    def _let_in(self) -> Iterable[Effect]:
        while (candidate := self._admission.next(len(self._active))) is not None:
            job = candidate.thing
            name, request = next(iter(job.requests.items()))
            ticket = job.tickets[name]
            self._active.add(name)
            self._drop_answer(job, name)
            yield partial(ticket.start, self._engine, request)

    def _over(self, ticket: Ticket) -> Iterable[Effect]:
        if ticket.id in self._active:
            self._active.discard(ticket.id)
        elif ticket.id in self._jobs:
            return self._drop_answer(self._jobs[ticket.id], ticket.id)
        return []

    def _drop_answer(self, job: Job, name: str) -> Iterable[Effect]:
        """It waits no more; nor does the request, if it was the last of it."""
        del self._jobs[name], job.tickets[name]
        job.requests.pop(name, None)
        return [] if job.tickets else self._drop(job)

    def _tell(self, gave_way: Iterable[Overloaded[Job]]) -> Iterable[Effect]:
        return [effect for each in gave_way for effect in self._give_up(each.candidate.thing, each.error)]

    def _give_up(self, job: Job, error: OmniError) -> Iterable[Effect]:
        return [*_cancels(job, error), *self._drop(job)]

    def _drop(self, job: Job) -> Iterable[Effect]:
        """It does not wait any more: all that it holds is free."""
        self._admission.leave(job.id)
        for name in job.tickets:
            del self._jobs[name]
        job.tickets, job.requests = {}, {}
        for queue in (self._to_download, self._short, self._long):
            queue.remove(job.id)
        downloads, job.downloads = list(job.downloads.values()), {}
        return [future.cancel for future in downloads]


def _cancels(job: Job, error: OmniError) -> list[Effect]:
    return [partial(ticket.cancel, error) for ticket in job.tickets.values()]
