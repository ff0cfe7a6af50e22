"""Closing several parts of an object, one after another."""

from collections.abc import Callable, Iterable

from omni.utils.interrupts import is_interrupt
from omni.utils.log import SafeLogger


class ClosingSteps:
    """Runs every step, even after errors. The first error is raised at the end, once, and others are logged.

    Ctrl-C interrupts `run` at any point, and the next `run` repeats that step: each must allow this.
    """

    def __init__(self, steps: Iterable[Callable[[], object]], log: SafeLogger, part: str) -> None:
        """part: the object that a step closes, for the log of further errors."""
        self._left = list(steps)
        self._log = log
        self._part = part
        self._first: BaseException | None = None

    def run(self) -> None:
        while self._left:
            try:
                self._left[0]()
            except BaseException as error:  # includes panics of libraries; close the other parts anyway
                if is_interrupt(error):
                    raise
                if self._first is None:
                    self._first = error
                else:
                    self._log.error("%s could not be closed", self._part, exc_info=error)
            del self._left[0]
        first, self._first = self._first, None
        if first is not None:
            raise first
