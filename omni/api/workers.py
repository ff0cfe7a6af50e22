"""Threads that prepare requests."""

import logging
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

from omni.api.job import Job

_log = logging.getLogger(__name__)

GENERAL = max(2, min(8, os.cpu_count() or 1))
"""Threads that prepare whatever comes. One more takes short texts only, which so need not wait while all others work on media."""


class Worker:
    """A daemon thread: one that is in a library's hands when the model is closed is left there, and ends when it comes back."""

    def __init__(self, number: int, work: Callable[["Worker", Job], object], *, only_short: bool = False) -> None:
        self.only_short = only_short
        self._work = work
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"omni-frontend_{number}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def give(self, job: Job) -> None:
        """To be worked on at once: the worker has nothing else to do."""
        self._jobs.put(job)

    def end(self) -> None:
        """No more will be given."""
        self._jobs.put(None)

    def join(self, seconds: float) -> None:
        """Waits for the thread, so long at most."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, seconds))

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._work(self, job)
            except BaseException:  # the thread goes on, whatever a library raises
                _log.exception("a request could not be prepared")
            # The loop variable would keep it until the next one comes.
            del job
