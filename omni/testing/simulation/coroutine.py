"""Phases that pause in the middle, where they wait for other ranks. Each runs in a thread, but only one thread runs at any moment:
control passes from the simulation to the phase and back."""

import threading
from collections.abc import Callable


class _AbandonedError(BaseException):
    """Ends a paused phase that is never resumed."""


class PhaseThread:
    """Runs phases, one after the other."""

    def __init__(self) -> None:
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._work: Callable[[], None] | None = None
        self._error: BaseException | None = None
        self._paused = self._closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def run(self, work: Callable[[], None]) -> bool:
        """Runs `work` until it ends or pauses. Returns whether it has ended. Raises its error."""
        self._work = work
        return self.resume()

    def resume(self) -> bool:
        """Goes on with work that has paused, as `run`."""
        self._go.release()
        self._back.acquire()
        error, self._error = self._error, None
        if error is not None:
            raise error
        return not self._paused

    def pause(self) -> None:
        """Called by the work: returns once it is resumed."""
        self._paused = True
        self._back.release()
        self._go.acquire()
        self._paused = False
        if self._closed:
            raise _AbandonedError

    def close(self) -> None:
        """Ends the thread, and the work that has paused."""
        self._closed, self._work = True, None
        self._go.release()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._go.acquire()
            if self._closed:
                return
            assert self._work is not None
            try:
                self._work()
            except _AbandonedError:
                return
            except BaseException as error:
                self._error = error
            self._back.release()
