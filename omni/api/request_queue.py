"""The queue of requests between `generate` and the stages, and the threads that prepare them."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from queue import SimpleQueue

from omni.api.request import PreparedRequest, Request, RequestHandle, RequestPreparer
from omni.api.serial_executor import SerialExecutor
from omni.engine import Admission, EngineOptions, PriorityQueue, Rejected
from omni.errors import OmniError, OverloadedError, StageError, as_omni_error
from omni.frontend.messages import RemoteMedia
from omni.media import MediaDownloader
from omni.utils.log import safe_logger

_log = safe_logger(__name__)

THREADS = max(2, min(8, os.cpu_count() or 1))
"""Threads that prepare any request. One more takes short texts only, so that these need not wait while all others decode media."""

_GRACE_SECONDS = 0.5

Effect = Callable[[], object]
"""A call that follows a change. It is made without the lock."""


class PreparingThread:
    """A daemon thread. If a library keeps it busy while the model is closed, it is left alone and ends when the library returns."""

    def __init__(
        self, number: int, work: Callable[["PreparingThread", Request], object], *, only_short: bool = False
    ) -> None:
        self.only_short = only_short
        self._work = work
        self._requests: SimpleQueue[Request | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"omni-frontend_{number}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, request: Request) -> None:
        """Starts to prepare it at once: the thread must be idle."""
        self._requests.put(request)

    def end(self) -> None:
        self._requests.put(None)

    def join(self, seconds: float) -> None:
        if self._thread.ident is not None:
            self._thread.join(max(0.0, seconds))

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            try:
                self._work(self, request)
            except BaseException:  # the thread continues after any error of a library
                _log.exception("a request could not be prepared")
            # The loop variable would keep the request until the next one arrives.
            del request


class _UnderWay(threading.local):
    """The effects that a thread calls, one after the other. An effect that follows from another one is called after it, not inside
    it. Otherwise an ended engine, whose refusal of a request submits the next one, would cause a recursion through all waiting
    requests."""

    effects: "deque[Effect] | None" = None


class RequestQueue:
    """Downloads media of requests, has threads prepare them, and submits them to the engine; each by priority, then arrival.

    | a request | leaves for | when |
    |---|---|---|
    | joins | downloading, or the queue | `Admission` accepts it |
    | waits for downloads | downloading, a URL at a time | few enough downloads run |
    | is downloading | the queue | all its media are there |
    | is queued | a thread | one is free, and there is memory for its inputs |
    | is being prepared | the ready ones | it is prepared |
    | is ready | the engine, an answer at a time | the engine can take one more |

    All of them count as waiting for `Admission`. Any of them may be rejected for a more urgent one, or finished elsewhere
    (`remove`), and then leaves at once; a thread that prepares it still completes, and its result is dropped. Called from any
    thread that Ctrl-C cannot interrupt.
    """

    def __init__(
        self, preparer: RequestPreparer, downloads: MediaDownloader, executor: SerialExecutor, limits: EngineOptions
    ) -> None:
        self._preparer = preparer
        self._engine = preparer.engine
        self._media = preparer.options.media
        self._downloads = downloads
        self._executor = executor
        self._lock = threading.Lock()
        self._under_way = _UnderWay()
        self._admission: Admission[Request] = Admission(
            limits.max_active_requests, limits.max_waiting_requests, limits.max_waiting_bytes, THREADS + 1
        )
        self._active: set[str] = set()
        """Handles of answers that the engine has."""
        self._waiting: dict[str, Request] = {}
        """Requests, by handle, of answers that the engine does not have yet."""
        self._to_download: PriorityQueue[Request] = PriorityQueue()
        self._fetching = 0
        self._short: PriorityQueue[Request] = PriorityQueue()
        self._long: PriorityQueue[Request] = PriorityQueue()
        self._closed = False
        self._threads = [PreparingThread(i, self._work, only_short=i == THREADS) for i in range(THREADS + 1)]
        *long, short = self._threads
        self._idle = {False: long, True: [short]}

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """Requests that are not at the stages yet. All answers of a request count once."""
        return self._admission.waiting

    @property
    def held_bytes(self) -> int:
        return self._admission.held_bytes

    def add(self, requests: Sequence[Request]) -> None:
        """Adds requests. They may be refused, or others rejected for them: their handles are cancelled."""
        for request in requests:
            self._change(partial(self._add, request))

    def remove(self, handle: RequestHandle) -> None:
        """An answer is finished or cancelled, in any state."""
        self._change(lambda: self._remove(handle))

    def close(self) -> None:
        """Accepts no further request. Does not wait for the threads."""
        with self._lock:
            self._closed = True
        for thread in self._threads:
            thread.end()

    def join_threads(self) -> None:
        """Waits for the threads, up to a limit: a library may keep one busy for longer."""
        until = time.monotonic() + _GRACE_SECONDS
        for thread in self._threads:
            thread.join(until - time.monotonic())

    def _change(self, change: Callable[[], Iterable[Effect]]) -> None:
        """Applies the change, then starts all work that it makes possible."""
        with self._lock:
            effects = list(change())
            if not self._closed:
                effects += [*self._begin_downloads(), *self._submit_ready()]
                self._assign_threads()
        if self._under_way.effects is not None:
            self._under_way.effects += effects
            return
        left = self._under_way.effects = deque(effects)
        try:
            while left:
                try:
                    left.popleft()()
                except BaseException:  # the other requests are notified anyway
                    _log.exception("a request could not be notified")
        finally:
            self._under_way.effects = None

    def _add(self, request: Request) -> Iterable[Effect]:
        request.handles = {name: handle for name, handle in request.handles.items() if not handle.finished}
        if not request.handles:
            return []
        if self._closed or request.error is not None:
            return _cancels(request, request.error or StageError("engine", "taking a request", "it is closed"))
        priority = request.arguments.priority
        try:
            rejected = self._admission.join(request.id, request, priority, len(self._active), request.held, ready=False)
        except OverloadedError as error:
            return _cancels(request, error)
        self._waiting |= dict.fromkeys(request.handles, request)
        if request.remote:
            self._to_download.add(request.id, self._admission.order(request.id), request)
        else:
            self._queue(request)
        return self._reject(rejected)

    def _queue(self, request: Request) -> None:
        queue = self._short if request.short else self._long
        queue.add(request.id, self._admission.order(request.id), request)

    def _begin_downloads(self) -> Iterable[Effect]:
        while (request := self._to_download.first()) is not None:
            if self._fetching >= self._media.max_downloads or not self._admission.may_grow(request.arguments.priority):
                return
            medium = request.to_download.popleft()
            if not request.to_download:
                self._to_download.remove(request.id)
            self._fetching += 1
            # Not in this thread, which may be the engine's.
            yield partial(self._executor.soon, partial(self._fetch, request, medium))

    def _fetch(self, request: Request, medium: RemoteMedia) -> None:
        future = self._downloads.fetch(medium.url, medium.field)
        with self._lock:
            waits = request.id in self._admission
            if waits:
                request.downloads[medium.url] = future
        if not waits:
            future.cancel()
        future.add_done_callback(lambda done: self._change(partial(self._take_download, request, medium.url, done)))

    def _take_download(self, request: Request, url: str, future: "Future[bytes]") -> Iterable[Effect]:
        self._fetching -= 1
        if request.id not in self._admission:
            return []
        error = CancelledError() if future.cancelled() else future.exception()
        if error is not None:
            return self._abort(request, as_omni_error("frontend", "downloading", error))
        request.downloaded[url] = future.result()
        if len(request.downloaded) == len(request.remote):
            request.downloads.clear()
            self._queue(request)
        held = [*request.held, *((data, len(data)) for data in request.downloaded.values())]
        try:
            return self._reject(self._admission.hold(request.id, held))
        except OverloadedError as overloaded:
            return self._abort(request, overloaded)

    def _assign_threads(self) -> None:
        while True:
            short, long = self._short.first(), self._long.first()
            queued = [each for each in (short, long) if each]
            first = min(queued, key=lambda each: self._admission.order(each.id), default=None)
            for request, idle in ((short, self._idle[True]), (first, self._idle[False])):
                if request is not None and idle and self._admission.may_grow(request.arguments.priority):
                    (self._short if request.short else self._long).remove(request.id)
                    idle.pop().put(request)
                    break
            else:
                return

    def _work(self, thread: PreparingThread, request: Request) -> None:
        outcome: PreparedRequest | OmniError | None
        try:
            outcome = self._prepare(request)
        except BaseException as error:  # a library's panic too: it is reported, and the thread is free again
            outcome = as_omni_error("frontend", "preparing the request", error)
        self._change(partial(self._take_prepared, thread, request, outcome))

    def _prepare(self, request: Request) -> PreparedRequest | None:
        if all(handle.finished for handle in list(request.handles.values())):
            return None
        prepared = self._preparer.prepare(request)
        # Before the engine can produce an output.
        for handle in list(request.handles.values()):
            handle.start(prepared.started)
        return prepared

    def _take_prepared(
        self, thread: PreparingThread, request: Request, outcome: PreparedRequest | OmniError | None
    ) -> Iterable[Effect]:
        self._idle[thread.only_short].append(thread)
        request.release_messages()
        if request.id not in self._admission or outcome is None:
            return []
        if isinstance(outcome, OmniError):
            return self._abort(request, outcome)
        request.prepared = {name: outcome.requests[name] for name in request.handles}
        return self._reject(self._admission.hold(request.id, outcome.held, ready=True))

    def _submit_ready(self) -> Iterable[Effect]:
        while (waiting := self._admission.next(len(self._active))) is not None:
            request = waiting.item
            name, prepared = next(iter(request.prepared.items()))
            handle = request.handles[name]
            self._active.add(name)
            self._drop_answer(request, name)
            yield partial(handle.submit, self._engine, prepared)

    def _remove(self, handle: RequestHandle) -> Iterable[Effect]:
        if handle.id in self._active:
            self._active.discard(handle.id)
        elif handle.id in self._waiting:
            return self._drop_answer(self._waiting[handle.id], handle.id)
        return []

    def _drop_answer(self, request: Request, name: str) -> Iterable[Effect]:
        """The answer no longer waits; nor does the request, if it was the last one."""
        del self._waiting[name], request.handles[name]
        request.prepared.pop(name, None)
        return [] if request.handles else self._drop(request)

    def _reject(self, rejected: Iterable[Rejected[Request]]) -> Iterable[Effect]:
        return [effect for each in rejected for effect in self._abort(each.waiting.item, each.error)]

    def _abort(self, request: Request, error: OmniError) -> Iterable[Effect]:
        return [*_cancels(request, error), *self._drop(request)]

    def _drop(self, request: Request) -> Iterable[Effect]:
        """The request no longer waits: all that it holds is freed."""
        self._admission.leave(request.id)
        for name in request.handles:
            del self._waiting[name]
        request.handles, request.prepared = {}, {}
        for queue in (self._to_download, self._short, self._long):
            queue.remove(request.id)
        downloads, request.downloads = list(request.downloads.values()), {}
        return [future.cancel for future in downloads]


def _cancels(request: Request, error: OmniError) -> list[Effect]:
    return [partial(handle.cancel, error) for handle in request.handles.values()]
