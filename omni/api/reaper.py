"""Work that a finalizer asks for.

The garbage collector runs finalizers in any thread at any point, also while that very thread holds a lock. So a
finalizer here only puts a function into a queue that is made for it; this thread calls it.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue


class Reaper:
    """One daemon thread and its queue."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="omni-reaper", daemon=True)
        self._thread.start()

    @property
    def current(self) -> bool:
        """Whether this is the reaper's own thread."""
        return threading.current_thread() is self._thread

    def soon(self, work: Callable[[], object]) -> None:
        """Has `work` called. Safe in a finalizer."""
        self._work.put(work)

    def close(self) -> None:
        """Ends the thread once it has done what was asked so far."""
        self._work.put(None)
        if not self.current:
            self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            # The loop variable would keep what the work belongs to alive until the next one comes.
            del work
