"""Uninterrupted work, in a thread of its own.

Ctrl-C interrupts the main thread between any two steps, and the garbage collector runs finalizers in any thread at any point, even
while that thread holds a lock. So users' threads and finalizers change no shared state: they put a function into a queue, which
is one atomic step, and this thread calls it.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TypeVar

from omni.utils.log import safe_logger

_log = safe_logger(__name__)
T = TypeVar("T")


class SerialExecutor:
    """One daemon thread and its queue of functions, called in order."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="omni-executor", daemon=True)
        self._ending = False
        self._ended = threading.Event()

    def start(self) -> None:
        self._thread.start()

    @property
    def current(self) -> bool:
        """Whether this is the executor's own thread."""
        return threading.current_thread() is self._thread

    def soon(self, work: Callable[[], object]) -> None:
        """Has `work` called, unless the thread is about to end. Safe in a finalizer."""
        self._work.put(work)

    def submit(self, work: Callable[[], object]) -> None:
        """Has `work` called, in the caller's thread if the executor's has ended, or was not started. Does not wait."""
        self._work.put(work)
        if self._ended.is_set() or not self._thread.is_alive():
            # The thread may have emptied its queue before this was put.
            self._do_the_rest()

    def call(self, work: Callable[[], T]) -> T:
        """Returns or raises as `work` does. Waits for it; an interrupted wait (Ctrl-C) does not cancel the work."""
        if self.current:
            return work()
        answer: Future[T] = Future()
        self.submit(lambda: _answer(answer, work))
        return answer.result()

    def end(self) -> None:
        """The thread ends after the work that is queued now. Called by its own work."""
        self._ending = True

    def join(self) -> None:
        """Waits for the end of the thread. A no-op in the thread itself, and before `start`."""
        if not self.current and self._thread.ident is not None:
            # Not `Thread.join`: after one that Ctrl-C interrupts, the thread counts as dead (Python 3.11).
            self._ended.wait()

    def _run(self) -> None:
        try:
            while not self._ending:
                self._do(self._work.get())
        finally:
            self._ended.set()
            self._do_the_rest()

    def _do_the_rest(self) -> None:
        while True:
            try:
                work = self._work.get_nowait()
            except Empty:
                return
            self._do(work)
            del work

    def _do(self, work: Callable[[], object]) -> None:
        # A library's panic too, since a wait for the thread would never end. In the caller's thread Ctrl-C is the user's.
        caught = BaseException if self.current else Exception
        try:
            work()
        except caught:
            _log.exception("work of the executor failed")


def _answer(answer: "Future[T]", work: Callable[[], T]) -> None:
    try:
        result = work()
    except BaseException as error:  # the caller gets any error
        answer.set_exception(error)
    else:
        answer.set_result(result)
