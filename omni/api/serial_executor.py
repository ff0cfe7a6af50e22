"""Work that is not to be cut in half, done in a thread of its own.

Ctrl-C interrupts the main thread between any two steps, and the garbage collector runs finalizers in any thread at any point, also
while that very thread holds a lock. So users' threads and finalizers change nothing that others rely on: they put a function into a
queue that is made for it, which happens or does not, and this thread calls it.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TypeVar

_log = logging.getLogger(__name__)
T = TypeVar("T")


class SerialExecutor:
    """One daemon thread and its queue. It does things in the order in which they were asked for."""

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
        """Has `work` called, unless the thread is at its end. Safe in a finalizer."""
        self._work.put(work)

    def ask(self, work: Callable[[], object]) -> None:
        """Has `work` called, by this thread if the executor's has ended. Does not wait."""
        self._work.put(work)
        if self._ended.is_set():
            # The thread may have looked for the last time before this came.
            self._do_the_rest()

    def call(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises. Waits for it; who is interrupted meanwhile (Ctrl-C) has still asked for it."""
        if self.current:
            return work()
        answer: Future[T] = Future()
        self.ask(lambda: _answer(answer, work))
        return answer.result()

    def end(self) -> None:
        """The thread ends once it has done what was asked so far. To be called by work of its own."""
        self._ending = True

    def join(self) -> None:
        """Waits for the end of the thread. A no-op in the thread itself, and before it was started."""
        if not self.current and self._thread.ident is not None:
            # Not by the thread's own join: one that Ctrl-C interrupts takes the thread for dead (Python 3.11).
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
        # Of a library that panics too: whoever waits for the thread would wait for ever. Elsewhere Ctrl-C is the user's.
        caught = BaseException if self.current else Exception
        try:
            work()
        except caught:
            _log.exception("could not do what was asked")


def _answer(answer: "Future[T]", work: Callable[[], T]) -> None:
    try:
        result = work()
    except BaseException as error:  # the one who asked is to know, whatever it is
        answer.set_exception(error)
    else:
        answer.set_result(result)
